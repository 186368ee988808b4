package edged

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
)

// errStopped is what the kubelet's left-over goroutines get for every call after the end.
var errStopped = errors.New("kubelet was stopped")

// clients are the three that the kubelet uses; all dial through one gate.
type clients struct {
	kube      *kubernetes.Clientset
	heartbeat *kubernetes.Clientset
	events    *corev1client.CoreV1Client
}

// newClients makes the clients as upstream's buildKubeletClientConfig would, but from the given configuration.
func newClients(base *rest.Config, gate *gate, settings *kubeletconfig.KubeletConfiguration) (clients, error) {
	cfg := rest.CopyConfig(base)
	gate.stand(cfg)
	cfg.UserAgent = orDefault(cfg.UserAgent, "kubelet/edged")
	if cfg.ContentType == "" {
		cfg.ContentType = settings.ContentType
		cfg.AcceptContentTypes = strings.Join([]string{settings.ContentType, runtime.ContentTypeJSON}, ",")
	}
	cfg.QPS = -1 // the API is in this process; a throttle would only add latency

	var out clients
	var err error
	if out.kube, err = kubernetes.NewForConfig(cfg); err != nil {
		return clients{}, fmt.Errorf("make kubelet client: %w", err)
	}
	events := rest.CopyConfig(cfg)
	if settings.EventRecordQPS > 0 { // 0 means no limit
		events.QPS = float32(settings.EventRecordQPS)
	}
	events.Burst = int(settings.EventBurst)
	if out.events, err = corev1client.NewForConfig(events); err != nil {
		return clients{}, fmt.Errorf("make event client: %w", err)
	}
	heartbeat := rest.CopyConfig(cfg)
	// A heartbeat must give up before the next one is due.
	heartbeat.Timeout = min(settings.NodeStatusUpdateFrequency.Duration, leaseDuration(settings))
	if out.heartbeat, err = kubernetes.NewForConfig(heartbeat); err != nil {
		return clients{}, fmt.Errorf("make heartbeat client: %w", err)
	}
	return out, nil
}

// gate lets connections through until it is closed; then it ends them all.
type gate struct {
	through func(ctx context.Context, network, address string) (net.Conn, error)

	mu     sync.Mutex
	closed bool                   // guarded by mu
	open   map[*gateConn]struct{} // guarded by mu
}

func newGate() *gate {
	return &gate{through: (&net.Dialer{}).DialContext, open: map[*gateConn]struct{}{}}
}

// stand puts the gate into a configuration: into a copy of its transport if it has one of its own, else as its dialler.
func (g *gate) stand(cfg *rest.Config) {
	if cfg.Dial != nil {
		g.through = cfg.Dial
	}
	own, ok := cfg.Transport.(*http.Transport)
	if !ok {
		cfg.Dial = g.dial
		return
	}
	own = own.Clone()
	if own.DialContext != nil {
		g.through = own.DialContext
	}
	own.DialContext = g.dial
	cfg.Transport, cfg.Dial = own, nil
}

func (g *gate) dial(ctx context.Context, network, address string) (net.Conn, error) {
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed {
		return nil, errStopped
	}
	conn, err := g.through(ctx, network, address)
	if err != nil {
		return nil, err
	}
	gated := &gateConn{Conn: conn, gate: g}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, errors.Join(errStopped, conn.Close())
	}
	g.open[gated] = struct{}{}
	return gated, nil
}

func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	conns := g.open
	g.open = map[*gateConn]struct{}{}
	g.mu.Unlock()
	for conn := range conns {
		_ = conn.Conn.Close() // nobody is left who could use the error
	}
}

type gateConn struct {
	net.Conn
	gate *gate
}

func (c *gateConn) Close() error {
	c.gate.mu.Lock()
	delete(c.gate.open, c)
	c.gate.mu.Unlock()
	return c.Conn.Close()
}
