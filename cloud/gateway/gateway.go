package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/splice"
	"github.com/frond-edge/frond/streams/tunnel"
)

const (
	// proxyDialTimeout bounds the dial of any other target.
	proxyDialTimeout = 10 * time.Second
	// headerTimeout closes connections of clients that send nothing.
	headerTimeout = 10 * time.Second
	// idleTimeout closes connections that a client left open between two requests.
	idleTimeout = 2 * time.Minute
	// unreadyTimeout is how long a node that is not ready yet is retried. An apiserver without a proxy abandons a TLS
	// handshake after 10 s, and must get the reason before that.
	unreadyTimeout = 7 * time.Second
	// unreadyPause is the minimum time between two tries; the node waits about a second before it answers.
	unreadyPause = 250 * time.Millisecond
	// maxHeader is ten times what the longest node name needs.
	maxHeader = 16 << 10
)

// Tunnels opens streams to nodes; tunnel.Dialer implements it.
type Tunnels interface {
	// Dial opens a byte stream to a port of a node, with the errors of package tunnel. It gives up when ctx ends.
	Dial(ctx context.Context, node string, port uint16) (net.Conn, error)
	// DialAddress does the same to an address that the node reaches, such as one of its pods'.
	DialAddress(ctx context.Context, node string, to netip.AddrPort) (net.Conn, error)
	// Drop breaks all streams to a node and returns their number.
	Drop(node, reason string) int
	// Heard records that a node lives, so that it is tried again.
	Heard(node string)
}

// Nodes looks up Nodes in memory, without waiting for Kubernetes.
type Nodes interface {
	// Node looks a Node up by its name.
	Node(ctx context.Context, name string) (Node, bool)
	// ByTunnelAddress returns the name of the edge node with this wire.TunnelAddress.
	ByTunnelAddress(ctx context.Context, address netip.Addr) (name string, known bool)
}

// Gateway serves streams to nodes. Make it with New, run it once with Start.
type Gateway struct {
	cfg       Config
	nodes     Nodes
	addresses Addresses
	tunnels   Tunnels
	authorize Authorizer
	metrics   *metrics
	log       *zap.Logger
	ready     chan struct{}
	// inFlight are the requests being served: the HTTP server does not wait for them.
	inFlight sync.WaitGroup
	// portsChanged, with a buffer of 1, signals that portNodes was changed.
	portsChanged chan struct{}
	connLimit    *connLimiter

	mu sync.Mutex
	// Guarded by mu. lastHeartbeats is when the last heartbeat of each node arrived; once stopped is set, no request is begun.
	lastHeartbeats map[string]time.Time
	stopped        bool
	portNodes      map[uint16]string // nodes by their ports
}

// New creates a gateway. judge authorizes reading metrics; it may be nil if cfg.ScrapeAddress is empty.
func New(cfg Config, nodes Nodes, addresses Addresses, tunnels Tunnels, judge Authorizer, registerer prometheus.Registerer, log *zap.Logger) (*Gateway, error) {
	if cfg.ScrapeAddress != "" && judge == nil {
		return nil, errors.New("gateway: no authorizer for metrics")
	}
	return &Gateway{
		cfg: cfg, nodes: nodes, addresses: addresses, tunnels: tunnels, authorize: judge, metrics: newMetrics(registerer), log: log,
		ready: make(chan struct{}), lastHeartbeats: map[string]time.Time{}, portsChanged: make(chan struct{}, 1), connLimit: newConnLimiter(),
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
	group.Go(func() error { return g.servePorts(gctx) })
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
	g.mu.Lock()
	g.lastHeartbeats[node] = time.Now()
	g.mu.Unlock()
	g.tunnels.Heard(node)
}

func (g *Gateway) lastHeartbeat(node string) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lastHeartbeats[node]
}

// OnNodeChanged handles a change of a Node: nil for is means that it is deleted. It breaks the streams that may not continue.
func (g *Gateway) OnNodeChanged(name string, was Node, is *Node) {
	why := closeReason(was, is)
	if why == "" {
		return
	}
	if is == nil {
		g.mu.Lock()
		delete(g.lastHeartbeats, name)
		g.mu.Unlock()
	}
	g.tunnels.Drop(name, why)
}

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

// refusal is the error of a request that is not served; its text is for the user.
type refusal struct {
	label string
	text  string
	// logged says that the tunnel has already logged it.
	logged bool
}

func (r *refusal) Error() string { return r.text }

// dialPort opens a stream to a port of a node. An error is a *refusal.
func (g *Gateway) dialPort(ctx context.Context, who, name string, node Node, port uint16) (net.Conn, error) {
	if g.nodeAtPort(port) == name {
		port = config.EdgeKubeletPort // the port in its Node is its port at the cloud
	}
	return g.openStream(ctx, who, name, node, func(ctx context.Context) (net.Conn, error) { return g.tunnels.Dial(ctx, name, port) })
}

// openStream opens a stream to a node with dial. An error is a *refusal. The tunnel bounds the time and tells other
// cloudcores when a node is silent, which it cannot detect if the dial is abandoned before.
func (g *Gateway) openStream(ctx context.Context, who, name string, node Node, dial func(ctx context.Context) (net.Conn, error)) (net.Conn, error) {
	began := time.Now()
	if err := g.checkBlocked(name); err != nil {
		return nil, err
	}
	conn, err := g.dialReady(tunnel.WithLabel(ctx, who), dial)
	if err != nil {
		return nil, g.dialRefusal(ctx, err, name, node)
	}
	// CloseStreams and OnNodeChanged affect only existing streams: changes before this stream existed must be checked here.
	if err := g.checkBlocked(name); err != nil {
		_ = conn.Close() // abandoned
		return nil, err
	}
	if now, known := g.nodes.Node(ctx, name); !known || now.UID != node.UID {
		_ = conn.Close() // abandoned
		return nil, &refusal{label: refusedDial, text: fmt.Sprintf("node %s is deleted", name)}
	}
	g.metrics.opening.Observe(time.Since(began).Seconds())
	return conn, nil
}

// dialReady opens a tunnel with dial. While the node answers that it is not ready, the dial is repeated: a node that
// has just joined lacks its kubelet's serving certificate for a second or two.
func (g *Gateway) dialReady(ctx context.Context, dial func(ctx context.Context) (net.Conn, error)) (net.Conn, error) {
	timeout := cmp.Or(g.cfg.UnreadyTimeout, unreadyTimeout)
	for began := time.Now(); ; {
		conn, err := dial(ctx)
		refused, ok := errors.AsType[*tunnel.RefusedError](err)
		if !ok || refused.Code != tunnel.CodeUnready || time.Since(began) > timeout {
			return conn, err
		}
		timer := time.NewTimer(unreadyPause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		case <-timer.C:
		}
	}
}

// checkBlocked returns a refusal for a node that may not be connected, so that callers do not wait until it is found
// silent. nil: it may.
func (g *Gateway) checkBlocked(name string) error {
	if g.cfg.BlockedReason == nil {
		return nil
	}
	if why := g.cfg.BlockedReason(name); why != "" {
		return &refusal{label: refusedBlocked, text: fmt.Sprintf("node %s is shut out: %s", name, why)}
	}
	return nil
}

// dialRefusal returns the refusal for a failed dial.
func (g *Gateway) dialRefusal(ctx context.Context, err error, name string, node Node) *refusal {
	if shut, ok := errors.AsType[*refusal](g.checkBlocked(name)); ok {
		return shut // blocked while it was being dialled
	}
	if refused, ok := errors.AsType[*tunnel.RefusedError](err); ok && refused.Code == tunnel.CodeVersion && refused.Address.IsValid() {
		text := fmt.Sprintf("edgecore on node %s is too old for connections to pods, upgrade it: %v", name, err)
		return &refusal{label: refusedByNode, text: text, logged: true}
	} else if ok {
		return &refusal{label: refusedByNode, text: err.Error(), logged: true}
	}
	if errors.Is(err, tunnel.ErrTooMany) {
		return &refusal{label: refusedTooMany, text: err.Error(), logged: true}
	}
	if now, known := g.nodes.Node(context.WithoutCancel(ctx), name); known {
		node = now
	}
	text := fmt.Sprintf("%s: %v", node.silentReason(name, g.lastHeartbeat(name), time.Now()), err)
	return &refusal{label: refusedSilent, text: text, logged: true}
}

// dialTarget opens a connection to a target of CONNECT. An error is a *refusal.
func (g *Gateway) dialTarget(ctx context.Context, who, target string) (conn net.Conn, edge bool, err error) {
	host, portText, err := net.SplitHostPort(target)
	port, perr := strconv.ParseUint(portText, 10, 16)
	if err != nil || perr != nil || host == "" || port == 0 {
		return nil, false, &refusal{label: refusedRequest, text: fmt.Sprintf("%.100q is not host:port", target)}
	}
	if address, err := netip.ParseAddr(host); err == nil && wire.IsTunnelAddress(address) {
		name, known := g.nodes.ByTunnelAddress(ctx, address)
		if !known {
			return nil, false, &refusal{label: refusedDial, text: fmt.Sprintf("no edge node has the address %s", address)}
		}
		host = name
	}
	node, known := g.nodes.Node(ctx, host)
	if known && node.Edge {
		conn, err = g.dialPort(ctx, who, host, node, uint16(port))
		return conn, true, err
	}
	if known && node.Address != "" {
		host = node.Address // the name of a Node need not be a DNS name
	} else if address, err := netip.ParseAddr(host); err == nil {
		to := netip.AddrPortFrom(address.Unmap().WithZone(""), uint16(port))
		if conn, edge, err = g.dialAddress(ctx, who, to); edge || err != nil {
			return conn, edge, err
		}
	}
	dialer := net.Dialer{Timeout: proxyDialTimeout}
	conn, err = dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, portText))
	if err != nil {
		return nil, false, &refusal{label: refusedDial, text: err.Error() + unreachableHint(host, err)}
	}
	return conn, false, nil
}

// unreachableHint returns a possible cause if an address of a private network is not reached.
func unreachableHint(host string, failure error) string {
	if address, err := netip.ParseAddr(host); err != nil || !address.IsPrivate() || errors.Is(failure, syscall.ECONNREFUSED) {
		return ""
	}
	return " (an address of a pod on a gateway is reached if its Node's podCIDR or gateway.trustedNetworks contain it)"
}

// relayConn connects a caller to a target that is not an edge node, and logs what a tunnel would log.
func (g *Gateway) relayConn(ctx context.Context, who, target string, near, far net.Conn) {
	g.metrics.passed.Inc()
	g.metrics.passing.Inc()
	defer g.metrics.passing.Dec()
	began := time.Now()
	g.log.Info("connection passed on", zap.String("target", target), zap.String("user", who))
	result := spliceConns(ctx, near, far)
	g.log.Info("passed connection ended", zap.String("target", target), zap.String("user", who), zap.Duration("took", time.Since(began)),
		zap.Int64("sent", result.Sent), zap.Int64("received", result.Received), zap.Error(result.Err))
}

// spliceConns copies between two ends until they or ctx have ended.
func spliceConns(ctx context.Context, near, far net.Conn) splice.Result {
	defer context.AfterFunc(ctx, func() { _ = near.Close() })() // abandoned
	return splice.Join(near, far)
}
