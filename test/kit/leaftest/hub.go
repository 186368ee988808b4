// Package leaftest gives tests a real hub and real leafs. Package relaytest gives them a link between the two that can be cut.
//
// All servers run in the test's process on 127.0.0.1 with free ports, and end with the test.
package leaftest

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/test/kit"
)

// waitTimeout bounds the waits of tests; two busy cores need some of it.
const waitTimeout = 20 * time.Second

// Hub is a single NATS server with JetStream in domain "hub" and a leaf listener. It has no authentication.
type Hub struct {
	tb   testing.TB
	dir  string
	opts server.Options
	nats *server.Server
}

// NewHub starts a hub. Its pings are short, so that it drops a silent leaf after about two seconds.
func NewHub(tb testing.TB) *Hub {
	tb.Helper()
	h := &Hub{tb: tb, dir: tb.TempDir()}
	h.opts = server.Options{
		ServerName: "hub", Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
		JetStream: true, JetStreamDomain: "hub", StoreDir: h.dir, MaxPayload: 8 << 20,
		PingInterval: time.Second, MaxPingsOut: 2,
	}
	h.opts.LeafNode.Host = "127.0.0.1"
	h.opts.LeafNode.Port = server.RANDOM_PORT
	h.opts.LeafNode.Compression.Mode = server.CompressionOff
	h.Start()
	tb.Cleanup(h.Stop)
	return h
}

// Start starts a stopped hub again, on the same ports and store.
func (h *Hub) Start() {
	h.tb.Helper()
	opts := h.opts
	ns, err := server.NewServer(&opts)
	if err != nil {
		h.tb.Fatalf("make hub: %v", err)
	}
	ns.Start()
	if !ns.ReadyForConnections(waitTimeout) {
		h.tb.Fatal("hub not ready")
	}
	h.nats = ns
	h.opts.Port = ns.Addr().(*net.TCPAddr).Port
	h.opts.LeafNode.Port = opts.LeafNode.Port
}

// Stop ends the hub.
func (h *Hub) Stop() {
	if h.nats == nil {
		return
	}
	h.nats.Shutdown()
	h.nats.WaitForShutdown()
	h.nats = nil
}

// Addr returns the address of the leaf listener.
func (h *Hub) Addr() string { return fmt.Sprintf("127.0.0.1:%d", h.opts.LeafNode.Port) }

// Leafs returns the number of linked leafs.
func (h *Hub) Leafs() int { return h.nats.NumLeafNodes() }

// Conn returns a client connection that ends with the test.
func (h *Hub) Conn() *nats.Conn {
	h.tb.Helper()
	nc, err := nats.Connect(h.nats.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		h.tb.Fatalf("connect to hub: %v", err)
	}
	h.tb.Cleanup(nc.Close)
	return nc
}

// Leaf is a running leaf.Server.
type Leaf struct {
	*leaf.Server
	tb     testing.TB
	cancel context.CancelFunc
	group  errgroup.Group
	ended  bool
}

// StartLeaf runs a leaf and waits until it is ready. Node defaults to "edge-1", Dir to a folder of the test; pings and redials are short,
// and there is no reserve. The leaf ends with the test, or with Stop.
func StartLeaf(tb testing.TB, cfg leaf.Config) *Leaf {
	tb.Helper()
	if cfg.Node == "" {
		cfg.Node = "edge-1"
	}
	if cfg.Dir == "" {
		cfg.Dir = tb.TempDir()
	}
	if cfg.PingInterval == 0 {
		cfg.PingInterval = time.Second
	}
	if cfg.RedialMin == 0 {
		cfg.RedialMin, cfg.RedialMax = 200*time.Millisecond, time.Second
	}
	if cfg.Reserve == 0 {
		cfg.Reserve = -1 // no reserve file for each of a hundred leafs
	}
	s, err := leaf.New(cfg, zaptest.NewLogger(tb))
	if err != nil {
		tb.Fatalf("make leaf: %v", err)
	}
	// Not tb.Context(): that ends before the cleanups, and clients are closed in cleanups.
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	l := &Leaf{Server: s, tb: tb, cancel: cancel}
	l.group.Go(func() error { return s.Start(ctx) })
	tb.Cleanup(l.Stop)
	kit.Receive(tb, "the leaf is ready", s.Ready())
	return l
}

// Stop ends the leaf and waits for it. It may be called more than once.
func (l *Leaf) Stop() {
	l.tb.Helper()
	l.cancel()
	if err := l.group.Wait(); err != nil && !l.ended {
		l.tb.Errorf("leaf ended: %v", err)
	}
	l.ended = true
}

// Client returns a client connection to the leaf that ends with the test.
func (l *Leaf) Client() *nats.Conn {
	l.tb.Helper()
	nc, err := l.Conn("test")
	if err != nil {
		l.tb.Fatalf("connect to leaf: %v", err)
	}
	l.tb.Cleanup(nc.Close)
	return nc
}

// WaitLink waits until the link is up, or down.
func (l *Leaf) WaitLink(up bool) leaf.LinkState {
	l.tb.Helper()
	timeout := time.After(3 * waitTimeout) // the guarantee is 30 s
	for {
		state, changed := l.WatchLink()
		if state.Up == up {
			return state
		}
		select {
		case <-changed:
		case <-timeout:
			l.tb.Fatalf("link did not become up=%t", up)
		}
	}
}

// URL returns the hub URL of an address, for leaf.Config.Hub.
func URL(addr string) string { return "nats-leaf://" + addr }
