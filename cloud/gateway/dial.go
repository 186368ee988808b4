package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/tunnel"
	"github.com/frond-edge/frond/streams/tunnel/protocol"
)

const (
	// proxyDialTimeout bounds the dial of any other target.
	proxyDialTimeout = 10 * time.Second
	// unreadyTimeout is how long a node that is not ready yet is retried. An apiserver without a proxy abandons a TLS
	// handshake after 10 s, and must get the reason before that.
	unreadyTimeout = 7 * time.Second
	// unreadyPause is the minimum time between two tries; the node waits about a second before it answers.
	unreadyPause = 250 * time.Millisecond
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

// nodeDialer opens streams to nodes and to the addresses behind them.
type nodeDialer struct {
	cfg       Config
	nodes     Nodes
	addresses Addresses
	tunnels   Tunnels
	ports     *portTable
	metrics   *metrics

	mu             sync.Mutex
	lastHeartbeats map[string]time.Time // guarded by mu; when the last heartbeat of each node arrived
}

func (d *nodeDialer) recordHeartbeat(node string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lastHeartbeats[node] = time.Now()
}

func (d *nodeDialer) forgetNode(node string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.lastHeartbeats, node)
}

func (d *nodeDialer) lastHeartbeat(node string) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lastHeartbeats[node]
}

// dialPort opens a stream to a port of a node. An error is a *refusal.
func (d *nodeDialer) dialPort(ctx context.Context, who, name string, node Node, port uint16) (net.Conn, error) {
	if d.ports.nodeAt(port) == name {
		port = config.EdgeKubeletPort // the port in its Node is its port at the cloud
	}
	return d.openStream(ctx, who, name, node, func(ctx context.Context) (net.Conn, error) { return d.tunnels.Dial(ctx, name, port) })
}

// openStream opens a stream to a node with dial. An error is a *refusal. The tunnel bounds the time and tells other
// cloudcores when a node is silent, which it cannot detect if the dial is abandoned before.
func (d *nodeDialer) openStream(ctx context.Context, who, name string, node Node, dial func(ctx context.Context) (net.Conn, error)) (net.Conn, error) {
	began := time.Now()
	if err := d.checkBlocked(name); err != nil {
		return nil, err
	}
	conn, err := d.dialReady(tunnel.WithLabel(ctx, who), dial)
	if err != nil {
		return nil, d.dialRefusal(ctx, err, name, node)
	}
	// CloseStreams and OnNodeChanged affect only existing streams: changes before this stream existed must be checked here.
	if err := d.checkBlocked(name); err != nil {
		_ = conn.Close() // abandoned
		return nil, err
	}
	if now, known := d.nodes.Node(ctx, name); !known || now.UID != node.UID {
		_ = conn.Close() // abandoned
		return nil, &refusal{label: refusedDial, text: fmt.Sprintf("node %s is deleted", name)}
	}
	d.metrics.opening.Observe(time.Since(began).Seconds())
	return conn, nil
}

// dialReady opens a tunnel with dial. While the node answers that it is not ready, the dial is repeated: a node that
// has just joined lacks its kubelet's serving certificate for a second or two.
func (d *nodeDialer) dialReady(ctx context.Context, dial func(ctx context.Context) (net.Conn, error)) (net.Conn, error) {
	timeout := cmp.Or(d.cfg.UnreadyTimeout, unreadyTimeout)
	for began := time.Now(); ; {
		conn, err := dial(ctx)
		refused, ok := errors.AsType[*tunnel.RefusedError](err)
		if !ok || refused.Code != protocol.CodeUnready || time.Since(began) > timeout {
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
func (d *nodeDialer) checkBlocked(name string) error {
	if d.cfg.BlockedReason == nil {
		return nil
	}
	if why := d.cfg.BlockedReason(name); why != "" {
		return &refusal{label: refusedBlocked, text: fmt.Sprintf("node %s is shut out: %s", name, why)}
	}
	return nil
}

// dialRefusal returns the refusal for a failed dial.
func (d *nodeDialer) dialRefusal(ctx context.Context, err error, name string, node Node) *refusal {
	if shut, ok := errors.AsType[*refusal](d.checkBlocked(name)); ok {
		return shut // blocked while it was being dialled
	}
	if refused, ok := errors.AsType[*tunnel.RefusedError](err); ok && refused.Code == protocol.CodeVersion && refused.Address.IsValid() {
		text := fmt.Sprintf("edgecore on node %s is too old for connections to pods, upgrade it: %v", name, err)
		return &refusal{label: refusedByNode, text: text, logged: true}
	} else if ok {
		return &refusal{label: refusedByNode, text: err.Error(), logged: true}
	}
	if errors.Is(err, tunnel.ErrTooMany) {
		return &refusal{label: refusedTooMany, text: err.Error(), logged: true}
	}
	if now, known := d.nodes.Node(context.WithoutCancel(ctx), name); known {
		node = now
	}
	text := fmt.Sprintf("%s: %v", node.silentReason(name, d.lastHeartbeat(name), time.Now()), err)
	return &refusal{label: refusedSilent, text: text, logged: true}
}

// dialTarget opens a connection to a target of CONNECT. An error is a *refusal.
func (d *nodeDialer) dialTarget(ctx context.Context, who, target string) (conn net.Conn, edge bool, err error) {
	host, portText, err := net.SplitHostPort(target)
	port, perr := strconv.ParseUint(portText, 10, 16)
	if err != nil || perr != nil || host == "" || port == 0 {
		return nil, false, &refusal{label: refusedRequest, text: fmt.Sprintf("%.100q is not host:port", target)}
	}
	if address, err := netip.ParseAddr(host); err == nil && wire.IsTunnelAddress(address) {
		name, known := d.nodes.ByTunnelAddress(ctx, address)
		if !known {
			return nil, false, &refusal{label: refusedDial, text: fmt.Sprintf("no edge node has the address %s", address)}
		}
		host = name
	}
	node, known := d.nodes.Node(ctx, host)
	if known && node.Edge {
		conn, err = d.dialPort(ctx, who, host, node, uint16(port))
		return conn, true, err
	}
	if known && node.Address != "" {
		host = node.Address // the name of a Node need not be a DNS name
	} else if address, err := netip.ParseAddr(host); err == nil {
		to := netip.AddrPortFrom(address.Unmap().WithZone(""), uint16(port))
		if conn, edge, err = d.dialAddress(ctx, who, to); edge || err != nil {
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
