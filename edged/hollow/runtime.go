package hollow

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
)

const (
	// defaultPodCIDR is used until the kubelet sets another one by UpdateRuntimeConfig. It is from the block for benchmarks
	// (RFC 2544), so that its addresses are not mistaken for reachable ones.
	defaultPodCIDR = "198.18.0.0/16"
	// stopTimeout is how long Start waits for running calls (an exec, an event stream) before it cuts them.
	stopTimeout = time.Second
)

// Config configures a Runtime. Zero optional fields mean their defaults.
type Config struct {
	Socket  string        // path of the unix socket; required
	Dir     string        // reported as the image file system; default: the socket's folder
	PodCIDR string        // addresses of pods; default 198.18.0.0/16
	Latency time.Duration // added to every call that changes state; default none
}

// Validate reports all faults of the configuration.
func (c Config) Validate() error {
	var errs []error
	if !filepath.IsAbs(c.Socket) {
		errs = append(errs, fmt.Errorf("socket: %q is not an absolute path", c.Socket))
	}
	if c.PodCIDR != "" {
		if _, err := netip.ParsePrefix(c.PodCIDR); err != nil {
			errs = append(errs, fmt.Errorf("podCIDR: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Runtime serves CRI. Create it with New, run it with Start.
type Runtime struct {
	cfg   Config
	log   *zap.Logger
	ready chan struct{}
	wake  chan struct{} // one slot: something is due earlier than the scheduler assumes

	streams streaming.Server // set before the socket serves, which guards it

	mu         sync.Mutex
	sandboxes  map[string]*sandbox        // guarded by mu, as are all fields below
	containers map[string]*container      //
	names      map[string]string          // reserved name → id
	images     map[string]*image          // by reference as pulled
	faults     map[string][]Fault         // by call name, e.g. "StartContainer"
	watchers   map[*eventWatcher]struct{} // of GetContainerEvents
	podPrefix  netip.Prefix               //
	lastIP     netip.Addr                 //
}

// New creates a Runtime. It opens nothing.
func New(cfg Config, log *zap.Logger) (*Runtime, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("hollow runtime configuration: %w", err)
	}
	if cfg.Dir == "" {
		cfg.Dir = filepath.Dir(cfg.Socket)
	}
	if cfg.PodCIDR == "" {
		cfg.PodCIDR = defaultPodCIDR
	}
	pods := netip.MustParsePrefix(cfg.PodCIDR).Masked()
	return &Runtime{
		cfg: cfg, log: log.Named("hollow"),
		ready: make(chan struct{}), wake: make(chan struct{}, 1),
		sandboxes: map[string]*sandbox{}, containers: map[string]*container{}, names: map[string]string{},
		images: map[string]*image{}, faults: map[string][]Fault{}, watchers: map[*eventWatcher]struct{}{},
		podPrefix: pods, lastIP: pods.Addr(),
	}, nil
}

// Endpoint is the kubelet's containerRuntimeEndpoint.
func (r *Runtime) Endpoint() string { return "unix://" + r.cfg.Socket }

// Ready is closed when the socket answers.
func (r *Runtime) Ready() <-chan struct{} { return r.ready }

// Start serves until ctx ends. The socket file of a killed process is replaced.
func (r *Runtime) Start(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(r.cfg.Socket), 0o750); err != nil {
		return fmt.Errorf("make folder of runtime socket: %w", err)
	}
	if err := os.Remove(r.cfg.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove old runtime socket: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", r.cfg.Socket)
	if err != nil {
		return fmt.Errorf("listen for CRI: %w", err)
	}
	streamListener, err := r.listenStreams(ctx)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(r.interceptCall))
	runtimeapi.RegisterRuntimeServiceServer(server, &runtimeService{Runtime: r})
	runtimeapi.RegisterImageServiceServer(server, &imageService{Runtime: r})

	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return server.Serve(listener) })
	g.Go(func() error { return r.serveStreams(gctx, streamListener) })
	g.Go(func() error { return r.runScheduler(gctx) })
	g.Go(func() error {
		<-gctx.Done()
		r.closeWatchers()
		cut := time.AfterFunc(stopTimeout, server.Stop)
		defer cut.Stop()
		server.GracefulStop()
		return nil
	})
	close(r.ready)
	r.log.Info("runtime ready", zap.String("socket", r.cfg.Socket))
	err = g.Wait()
	r.closeLogs()
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// closeLogs closes the log files of containers that still "run" when the runtime ends.
func (r *Runtime) closeLogs() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		c.closeLog()
	}
}
