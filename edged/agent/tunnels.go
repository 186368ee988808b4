package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/internal/splice"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/streams/tunnel"
)

// localTimeout limits the dial of a server on this machine.
const localTimeout = 2 * time.Second

// tunnelsPart returns the part that joins the cloud's tunnels to this node's own servers, the kubelet's and edgecore's, and
// to its pods. No other address can be reached.
func (n *Node) tunnelsPart(nc *nats.Conn, st *store.Store) (lifecycle.Part, error) {
	server, err := tunnel.NewServer(n.cfg.Node, nc, tunnel.Config{}, tunnel.NewMetrics(n.metrics), n.log)
	if err != nil {
		return lifecycle.Part{}, fmt.Errorf("tunnels: %w", err)
	}
	kubelet := net.JoinHostPort(n.cfg.Kubelet.Address, strconv.Itoa(int(n.cfg.Kubelet.Port)))
	gate := &servingGate{kubelet: func() certificateSource {
		if kubelet := n.localKubelet.Load(); kubelet != nil {
			return kubelet
		}
		return nil
	}}
	var listeners []*tunnel.Listener
	var targets []localTarget
	for port, target := range map[uint16]localTarget{
		uint16(n.cfg.Kubelet.Port): {kubelet, gate}, config.EdgeKubeletPort: {kubelet, gate}, config.EdgeMetricsPort: {n.cfg.Listen, nil},
	} {
		l, err := server.Listen(port)
		if err != nil {
			return lifecycle.Part{}, fmt.Errorf("tunnels to port %d: %w", port, err)
		}
		target.address = localDialAddress(target.address)
		listeners, targets = append(listeners, l), append(targets, target)
	}
	toPods, err := server.ListenAddresses()
	if err != nil {
		return lifecycle.Part{}, fmt.Errorf("tunnels to pods: %w", err)
	}
	pods := newPodDialer(n.cfg.Node, st, n.runtimeEndpoint())
	if n.cfg.Runtime.Hollow {
		pods.runtimeAddresses = noPodNetwork
	}
	start := func(ctx context.Context) error {
		g, gctx := errgroup.WithContext(ctx)
		g.Go(func() error { return server.Start(gctx) })
		g.Go(func() error { return pods.serveStreams(gctx, toPods) })
		for i, l := range listeners {
			g.Go(func() error { return forwardStreams(gctx, l, targets[i]) })
		}
		return g.Wait()
	}
	return lifecycle.Part{Name: "tunnels", Start: start}, nil
}

// localTarget is a server of this machine that the cloud may reach.
type localTarget struct {
	address string
	gate    *servingGate // nil: no wait
}

// localDialAddress returns the address at which a listening server can be dialled.
func localDialAddress(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address // the configuration was validated; the dial reports the fault
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// forwardStreams joins each incoming stream to a connection to target, until ctx ends.
func forwardStreams(ctx context.Context, l *tunnel.Listener, target localTarget) error {
	var streams errgroup.Group
	defer func() { _ = streams.Wait() }() // they return nil
	for {
		in, err := l.Next()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return fmt.Errorf("tunnels to %s: %w", target.address, err)
		}
		streams.Go(func() error {
			serveStream(ctx, in, target)
			return nil
		})
	}
}

// serveStream connects to the target before it accepts, so that the cloud learns at once if no server listens; ctx limits
// that. The tunnel logs the result.
func serveStream(ctx context.Context, in *tunnel.Incoming, target localTarget) {
	dialer := net.Dialer{Timeout: localTimeout}
	near, err := dialer.DialContext(ctx, "tcp", target.address)
	if err != nil {
		in.Refuse("nothing answers at " + target.address + ": " + err.Error())
		return
	}
	if target.gate != nil {
		if why := target.gate.awaitCertificate(ctx); why != "" {
			_ = near.Close() // no data was sent
			in.RefuseUnready(why)
			return
		}
	}
	far, err := in.Accept()
	if err != nil {
		_ = near.Close() // given up
		return
	}
	splice.Join(near, far)
}
