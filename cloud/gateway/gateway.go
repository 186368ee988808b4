package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
)

const (
	// headerTimeout closes connections of clients that send nothing.
	headerTimeout = 10 * time.Second
	// idleTimeout closes connections that a client left open between two requests.
	idleTimeout = 2 * time.Minute
	// maxHeader is ten times what the longest node name needs.
	maxHeader = 16 << 10
)

// Gateway serves streams to nodes. Make it with New, run it once with Start.
type Gateway struct {
	cfg     Config
	tunnels Tunnels
	dialer  *nodeDialer
	ports   *portServer
	proxy   *connectProxy
	scraper *scraper
	log     *zap.Logger
	ready   chan struct{}
	// inFlight are the requests being served: the HTTP server does not wait for them.
	inFlight sync.WaitGroup

	mu      sync.Mutex
	stopped bool // guarded by mu; once it is set, no request is begun
}

// New creates a gateway. judge authorizes reading metrics; it may be nil if cfg.ScrapeAddress is empty.
func New(cfg Config, nodes Nodes, addresses Addresses, tunnels Tunnels, judge Authorizer, registerer prometheus.Registerer, log *zap.Logger) (*Gateway, error) {
	if cfg.ScrapeAddress != "" && judge == nil {
		return nil, errors.New("gateway: no authorizer for metrics")
	}
	table, counts := newPortTable(), newMetrics(registerer)
	refusals := refusalLog{metrics: counts, log: log}
	dialer := &nodeDialer{
		cfg: cfg, nodes: nodes, addresses: addresses, tunnels: tunnels, ports: table, metrics: counts, lastHeartbeats: map[string]time.Time{},
	}
	return &Gateway{
		cfg: cfg, tunnels: tunnels, dialer: dialer, log: log, ready: make(chan struct{}),
		ports:   &portServer{cfg: cfg, table: table, dialer: dialer, connLimit: newConnLimiter(), refusals: refusals, metrics: counts, log: log},
		proxy:   &connectProxy{dialer: dialer, refusals: refusals, metrics: counts, log: log},
		scraper: &scraper{cfg: cfg, authorize: judge, dialer: dialer, refusals: refusals, log: log},
	}, nil
}

// Ready returns a channel that closes when all listeners are open.
func (g *Gateway) Ready() <-chan struct{} { return g.ready }

// Start serves until ctx ends; then it ends all streams and returns nil.
func (g *Gateway) Start(ctx context.Context) error {
	fronts, err := g.openListeners(ctx)
	if err != nil {
		return err
	}
	close(g.ready)
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return g.ports.servePorts(gctx) })
	for _, f := range fronts {
		server := &http.Server{
			Handler: g.trackRequests(f.handler), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ErrorLog: zap.NewStdLog(g.log),
			BaseContext: func(net.Listener) context.Context { return gctx },
		}
		group.Go(func() error {
			if err := server.Serve(f.listener); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve %s: %w", f.listener.Addr(), err)
			}
			return nil
		})
		group.Go(func() error {
			<-gctx.Done()
			return server.Close()
		})
		if f.closeIdle != nil {
			defer f.closeIdle()
		}
	}
	err = group.Wait()
	g.mu.Lock()
	g.stopped = true
	g.mu.Unlock()
	g.inFlight.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// trackRequests makes Start wait for each request.
func (g *Gateway) trackRequests(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		if g.stopped {
			g.mu.Unlock()
			return
		}
		g.inFlight.Add(1)
		g.mu.Unlock()
		defer g.inFlight.Done()
		next.ServeHTTP(w, r)
	})
}

// OnHeartbeat records a heartbeat of a node. It does not block.
func (g *Gateway) OnHeartbeat(node string) {
	g.dialer.recordHeartbeat(node)
	g.tunnels.Heard(node)
}

// OnNodeChanged handles a change of a Node: nil for is means that it is deleted. It breaks the streams that may not continue.
func (g *Gateway) OnNodeChanged(name string, was Node, is *Node) {
	why := closeReason(was, is)
	if why == "" {
		return
	}
	if is == nil {
		g.dialer.forgetNode(name)
	}
	g.tunnels.Drop(name, why)
}

// SetPorts sets the node of each port. It does not block.
func (g *Gateway) SetPorts(nodes map[uint16]string) { g.ports.table.setNodes(nodes) }

// CloseStreams breaks all streams to a node that may no longer be connected. It does not block.
func (g *Gateway) CloseStreams(name, why string) { g.tunnels.Drop(name, why) }

// closeReason returns why streams to a node may not continue; "" if they may.
func closeReason(was Node, is *Node) string {
	switch {
	case is == nil:
		return "the node is deleted"
	case was.UID != is.UID:
		return "the node is deleted, and another one has its name"
	case !was.Offline && is.Offline:
		return "the node is offline"
	}
	return ""
}
