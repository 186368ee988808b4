package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"

	"github.com/frond-edge/frond/edged/kubelet/hollowdeps"
)

// Kubelet is the upstream kubelet of one node. Create it with New, run it once with Start.
type Kubelet struct {
	cfg    Config
	cert   *ServingCert
	client *rest.Config
	log    *zap.Logger
	ready  chan struct{} // closed by Start when the Node is Ready
}

// kubeletStarted prevents a second kubelet in this process: upstream registers its metrics in NewMainKubelet, and panics the second time.
var kubeletStarted atomic.Bool //nolint:gochecknoglobals // guards process-wide state of upstream, see above

// ErrAlreadyStarted is the error of the second Start in a process.
var ErrAlreadyStarted = errors.New("a process can run one kubelet, once")

// New validates the configuration, also with upstream's own checks. It starts and opens nothing.
//
// cert is the certificate of the kubelet's port. client is the only connection to a Kubernetes API: for the kubelet's objects, events, heartbeats and tokens, and for the
// reviews that authorize callers of the kubelet's port.
func New(cfg Config, cert *ServingCert, client *rest.Config, log *zap.Logger) (*Kubelet, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("kubelet configuration: %w", err)
	}
	//nolint:forbidigo // upstream's decoder wants a context only for its logger
	if _, err := kubeletServer(context.TODO(), cfg, capabilities{}); err != nil {
		return nil, err
	}
	return &Kubelet{cfg: cfg, cert: cert, client: rest.CopyConfig(client), log: log.Named("edged"), ready: make(chan struct{})}, nil
}

// Ready is closed when the API shows the Node Ready, as reported by this kubelet and not by an earlier one.
func (k *Kubelet) Ready() <-chan struct{} { return k.ready }

// Start waits for the runtime, then runs the kubelet until ctx ends. Containers are left running.
func (k *Kubelet) Start(ctx context.Context) error {
	if kubeletStarted.Swap(true) {
		return ErrAlreadyStarted
	}
	var cut atomic.Bool
	logger := newLogger(k.log, k.cfg.Verbosity, &cut)
	if err := bridgeKlog(logger, k.cfg.Verbosity); err != nil {
		return err
	}
	ctx = klog.NewContext(ctx, logger)
	server, err := kubeletServer(ctx, k.cfg, queryCapabilities())
	if err != nil {
		return err
	}
	if err := k.prepareHost(ctx, server); err != nil {
		return err
	}
	if err := awaitRuntime(ctx, k.cfg.RuntimeEndpoint, k.log); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	gate := newConnGate()
	defer func() {
		cut.Store(true) // first, or each watch that gate ends is logged as an error
		gate.close()
	}()
	clients, err := newKubeClients(k.client, gate, &server.KubeletConfiguration)
	if err != nil {
		return err
	}
	began := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	deps, stopEvents, err := k.buildDependencies(gctx, server, clients)
	if err != nil {
		return err
	}
	defer stopEvents()
	k.cert.startRenewal(gctx, clients.kube)
	g.Go(func() error { return app.Run(gctx, server, deps, utilfeature.DefaultFeatureGate) })
	g.Go(func() error { return k.announceReady(gctx, clients.kube, began) })
	if err := g.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// announceReady closes ready when the Node is Ready.
func (k *Kubelet) announceReady(ctx context.Context, client kubernetes.Interface, began time.Time) error {
	if err := awaitReady(ctx, client, k.cfg.Node, began); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // we were asked to stop
		}
		return err
	}
	k.log.Info("node ready", zap.String("node", k.cfg.Node), zap.Duration("took", time.Since(began)))
	close(k.ready)
	return nil
}

// buildDependencies returns upstream's dependencies with our clients in them.
func (k *Kubelet) buildDependencies(ctx context.Context, server *options.KubeletServer, c kubeClients) (deps *kubelet.Dependencies, stop func(), err error) {
	deps, err = app.UnsecuredDependencies(ctx, server, utilfeature.DefaultFeatureGate)
	if err != nil {
		return nil, nil, fmt.Errorf("make kubelet dependencies: %w", err)
	}
	deps.KubeClient, deps.HeartbeatClient, deps.EventClient = c.kube, c.heartbeat, c.events
	deps.TLSConfig, deps.TLSOptions = k.cert.tlsConfig(deps.TLSOptions), nil // without options, upstream takes the config as it is
	if err := wrapProjectedPlugin(deps, k.cfg.PodCertificates, k.log); err != nil {
		return nil, nil, fmt.Errorf("make kubelet dependencies: %w", err)
	}
	stop = func() {}
	if k.cfg.Hollow {
		hollowdeps.Apply(deps, k.cfg.Node, k.cfg.Dir)
		if !canReadKmsg() {
			stop = eventsWithoutKmsg(ctx, deps, k.cfg.Node, c.events)
		}
	}
	return deps, stop, nil
}

// prepareHost finds faults that upstream would answer with os.Exit, and creates the cgroup that upstream requires.
func (k *Kubelet) prepareHost(ctx context.Context, server *options.KubeletServer) error {
	address := net.JoinHostPort(server.Address, strconv.Itoa(int(server.Port)))
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("kubelet port: %w", err)
	}
	if err := listener.Close(); err != nil {
		return fmt.Errorf("kubelet port: %w", err)
	}
	if !server.CgroupsPerQOS || server.CgroupRoot == "" || server.CgroupRoot == "/" {
		return nil
	}
	return makeCgroup(server.CgroupRoot, server.CgroupDriver)
}

func leaseDuration(c *kubeletconfig.KubeletConfiguration) time.Duration {
	return time.Duration(c.NodeLeaseDurationSeconds) * time.Second
}
