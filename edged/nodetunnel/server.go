// Package nodetunnel joins the tunnels that the cloud opens to a gateway to servers there: the kubelet's and edgecore's own, and pods.
//
// No other address can be reached. It owns no listener and no protocol; package tunnel carries the streams.
package nodetunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/internal/splice"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/streams/tunnel"
)

// dialTimeout limits the dial of a server on this machine.
const dialTimeout = 2 * time.Second

// Target is a server of this machine that the cloud may reach.
type Target struct {
	// Address is where it is dialled, as host:port.
	Address string
	// Gate delays its calls; nil: no wait.
	Gate *ServingGate
}

// Config names what the cloud may reach.
type Config struct {
	// Node is the name of the Node, whose pods may be reached.
	Node string
	// Targets are the servers of this machine, by the port of the tunnel.
	Targets map[uint16]Target
	// StoredPods returns the pods in the store, including those of other nodes.
	StoredPods func() []store.Entry
	// RuntimeAddresses returns the addresses that the runtime has assigned to a running pod.
	RuntimeAddresses func(ctx context.Context, podUID string) ([]netip.Addr, error)
	// HostAddresses returns the addresses of the machine.
	HostAddresses func() ([]net.Addr, error)
}

// Server serves the tunnels of one node.
type Server struct {
	tunnels *tunnel.Server
	serving []func(context.Context) error // one for each listener
}

// New listens to tunnels, which it owns from now on.
func New(cfg Config, tunnels *tunnel.Server) (*Server, error) {
	s := &Server{tunnels: tunnels}
	for port, target := range cfg.Targets {
		l, err := tunnels.Listen(port)
		if err != nil {
			return nil, fmt.Errorf("tunnels to port %d: %w", port, err)
		}
		s.serving = append(s.serving, func(ctx context.Context) error { return acceptStreams(ctx, l, target.Address, target.serveStream) })
	}
	toPods, err := tunnels.ListenAddresses()
	if err != nil {
		return nil, fmt.Errorf("tunnels to pods: %w", err)
	}
	pods := podDialer{cfg}
	s.serving = append(s.serving, func(ctx context.Context) error { return acceptStreams(ctx, toPods, "pods", pods.serveStream) })
	return s, nil
}

// Start serves until ctx ends and then returns nil.
func (s *Server) Start(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.tunnels.Start(gctx) })
	for _, serve := range s.serving {
		g.Go(func() error { return serve(gctx) })
	}
	return g.Wait()
}

// acceptStreams calls serve for each incoming stream until ctx ends, and waits for all of them.
func acceptStreams(ctx context.Context, l *tunnel.Listener, to string, serve func(context.Context, *tunnel.Incoming)) error {
	var streams errgroup.Group
	defer func() { _ = streams.Wait() }() // they return nil
	for {
		in, err := l.Next()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return fmt.Errorf("tunnels to %s: %w", to, err)
		}
		streams.Go(func() error {
			serve(ctx, in)
			return nil
		})
	}
}

// serveStream connects to the target before it accepts, so that the cloud learns at once if no server listens; ctx limits
// that. The tunnel logs the result.
func (t Target) serveStream(ctx context.Context, in *tunnel.Incoming) {
	dialer := net.Dialer{Timeout: dialTimeout}
	near, err := dialer.DialContext(ctx, "tcp", t.Address)
	if err != nil {
		in.Refuse("nothing answers at " + t.Address + ": " + err.Error())
		return
	}
	if t.Gate != nil {
		if why := t.Gate.awaitCertificate(ctx); why != "" {
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
