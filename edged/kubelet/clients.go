package kubelet

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

// errStopped is the error of every call that the kubelet's remaining goroutines make after the end.
var errStopped = errors.New("kubelet was stopped")

// kubeClients holds the three clients that the kubelet uses; all dial through one gate.
type kubeClients struct {
	kube      *kubernetes.Clientset
	heartbeat *kubernetes.Clientset
	events    *corev1client.CoreV1Client
}

// newKubeClients creates the clients as upstream's buildKubeletClientConfig would, but from the given configuration.
func newKubeClients(base *rest.Config, gate *connGate, settings *kubeletconfig.KubeletConfiguration) (kubeClients, error) {
	cfg := rest.CopyConfig(base)
	gate.installInto(cfg)
	cfg.UserAgent = orDefault(cfg.UserAgent, "kubelet/edged")
	if cfg.ContentType == "" {
		cfg.ContentType = settings.ContentType
		cfg.AcceptContentTypes = strings.Join([]string{settings.ContentType, runtime.ContentTypeJSON}, ",")
	}
	cfg.QPS = -1 // the API is in this process; a throttle would only add latency

	var out kubeClients
	var err error
	if out.kube, err = kubernetes.NewForConfig(cfg); err != nil {
		return kubeClients{}, fmt.Errorf("make kubelet client: %w", err)
	}
	events := rest.CopyConfig(cfg)
	if settings.EventRecordQPS > 0 { // 0 means no limit
		events.QPS = float32(settings.EventRecordQPS)
	}
	events.Burst = int(settings.EventBurst)
	if out.events, err = corev1client.NewForConfig(events); err != nil {
		return kubeClients{}, fmt.Errorf("make event client: %w", err)
	}
	heartbeat := rest.CopyConfig(cfg)
	// A heartbeat must time out before the next one is due.
	heartbeat.Timeout = min(settings.NodeStatusUpdateFrequency.Duration, leaseDuration(settings))
	if out.heartbeat, err = kubernetes.NewForConfig(heartbeat); err != nil {
		return kubeClients{}, fmt.Errorf("make heartbeat client: %w", err)
	}
	return out, nil
}

// connGate admits connections until it is closed; then it closes all of them.
type connGate struct {
	forward func(ctx context.Context, network, address string) (net.Conn, error)

	mu     sync.Mutex
	closed bool                    // guarded by mu
	conns  map[*gatedConn]struct{} // guarded by mu
}

func newConnGate() *connGate {
	return &connGate{forward: (&net.Dialer{}).DialContext, conns: map[*gatedConn]struct{}{}}
}

// installInto adds the gate to a configuration: to a clone of its transport if it has one, else as its dialler.
func (g *connGate) installInto(cfg *rest.Config) {
	if cfg.Dial != nil {
		g.forward = cfg.Dial
	}
	own, ok := cfg.Transport.(*http.Transport)
	if !ok {
		cfg.Dial = g.dial
		return
	}
	own = own.Clone()
	if own.DialContext != nil {
		g.forward = own.DialContext
	}
	own.DialContext = g.dial
	cfg.Transport, cfg.Dial = own, nil
}

func (g *connGate) dial(ctx context.Context, network, address string) (net.Conn, error) {
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed {
		return nil, errStopped
	}
	conn, err := g.forward(ctx, network, address)
	if err != nil {
		return nil, err
	}
	gated := &gatedConn{Conn: conn, gate: g}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, errors.Join(errStopped, conn.Close())
	}
	g.conns[gated] = struct{}{}
	return gated, nil
}

func (g *connGate) close() {
	g.mu.Lock()
	g.closed = true
	conns := g.conns
	g.conns = map[*gatedConn]struct{}{}
	g.mu.Unlock()
	for conn := range conns {
		_ = conn.Conn.Close() // no caller is left for the error
	}
}

type gatedConn struct {
	net.Conn
	gate *connGate
}

func (c *gatedConn) Close() error {
	c.gate.mu.Lock()
	delete(c.gate.conns, c)
	c.gate.mu.Unlock()
	return c.Conn.Close()
}
