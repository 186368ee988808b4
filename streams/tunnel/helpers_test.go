package tunnel_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/tunnel"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/relaytest"
)

const (
	node = "gw-17.example"
	port = 10250
	// waitTimeout is generous: nothing here should take a second on an idle machine.
	waitTimeout = 30 * time.Second
)

// hubOptions returns the options of a hub as installed: every node is a user with the permissions of subject.NodePermissions only.
func hubOptions(name string, nodes ...string) *server.Options {
	opts := &server.Options{
		ServerName: name, Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		Users: []*server.User{{Username: "cloud", Password: "cloud"}},
	}
	for _, n := range nodes {
		pub, sub := subject.NodePermissions(n)
		opts.Users = append(opts.Users, &server.User{Username: n, Password: n, Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Allow: pub}, Subscribe: &server.SubjectPermission{Allow: sub},
		}})
	}
	opts.LeafNode.Host, opts.LeafNode.Port = "127.0.0.1", server.RANDOM_PORT
	opts.LeafNode.Compression.Mode = server.CompressionOff
	return opts
}

func startServer(t testing.TB, opts *server.Options) *server.Server {
	t.Helper()
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(waitTimeout) {
		t.Fatalf("%s is not ready", opts.ServerName)
	}
	return s
}

// startLeaf starts a node's leaf, linked to the hub through addr, with TLS if secret is given.
func startLeaf(t testing.TB, name, addr string, secret *tls.Config) *server.Server {
	t.Helper()
	opts := &server.Options{ServerName: name, DontListen: true, NoSigs: true, NoLog: true}
	u := &url.URL{Scheme: "nats-leaf", Host: addr, User: url.UserPassword(name, name)}
	remote := &server.RemoteLeafOpts{URLs: []*url.URL{u}, IgnoreDiscoveredServers: true} // otherwise it goes around the proxy
	if secret != nil {
		remote.TLS, remote.TLSConfig, remote.TLSTimeout = true, secret, waitTimeout.Seconds()
	}
	remote.Compression.Mode = server.CompressionOff
	opts.LeafNode.Remotes = []*server.RemoteLeafOpts{remote}
	opts.LeafNode.ReconnectInterval = 100 * time.Millisecond
	l := startServer(t, opts)
	kit.Eventually(t, "leaf is linked", func() bool { return l.NumLeafNodes() == 1 })
	return l
}

func leafAddr(h *server.Server) string {
	v, err := h.Varz(nil)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("127.0.0.1:%d", v.LeafNode.Port)
}

func cloudConn(t testing.TB, url string) *nats.Conn {
	t.Helper()
	return connectClient(t, url, nats.UserInfo("cloud", "cloud"), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.IgnoreDiscoveredServers())
}

func nodeConn(t testing.TB, l *server.Server) *nats.Conn {
	t.Helper()
	return connectClient(t, "", nats.InProcessServer(l))
}

func connectClient(t testing.TB, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// tunnelPair is a Dialer and a node's Server with a Listener on port, over a real hub and a real leaf.
type tunnelPair struct {
	cloudNC, nodeNC           *nats.Conn
	cloudMetrics, nodeMetrics *prometheus.Registry
	dialer                    *tunnel.Dialer
	server                    *tunnel.Server
	listener                  *tunnel.Listener
	hub                       *server.Server
	link, client              *relaytest.Relay // between leaf and hub, between cloud and hub; nil in benchmarks
	stopCloud, stopNode       func()

	acceptor sync.Once
	accepted chan *tunnel.Conn
}

func startPair(t testing.TB, cloudCfg, nodeCfg tunnel.Config) *tunnelPair {
	t.Helper()
	return startPairOver(t, cloudCfg, nodeCfg, func(addr string) string { return addr })
}

// startPairOver starts a tunnelPair with a relay between the leaf and the hub's address.
func startPairOver(t testing.TB, cloudCfg, nodeCfg tunnel.Config, over func(addr string) string) *tunnelPair {
	t.Helper()
	opts, secret := hubOptions("hub", node, "gw-18"), (*tls.Config)(nil)
	_, bench := t.(*testing.B)
	if bench { // a link as installed: its cost belongs to the measurement
		both := selfSigned(t)
		opts.LeafNode.TLSConfig, opts.LeafNode.TLSTimeout, secret = both.server, waitTimeout.Seconds(), both.client
	}
	h := startServer(t, opts)
	e := &tunnelPair{hub: h, cloudMetrics: prometheus.NewRegistry(), nodeMetrics: prometheus.NewRegistry()}
	if bench { // proxies would distort the measurement
		e.cloudNC, e.nodeNC = cloudConn(t, h.ClientURL()), nodeConn(t, startLeaf(t, node, over(leafAddr(h)), secret))
	} else {
		e.link, e.client = relaytest.Start(t, leafAddr(h), relaytest.Config{}), relaytest.Start(t, h.Addr().String(), relaytest.Config{})
		e.cloudNC, e.nodeNC = cloudConn(t, "nats://"+e.client.Addr()), nodeConn(t, startLeaf(t, node, e.link.Addr(), nil))
	}
	var err error
	if e.dialer, err = tunnel.NewDialer(e.cloudNC, cloudCfg, tunnel.NewMetrics(e.cloudMetrics), newLogger(t, "cloud")); err != nil {
		t.Fatal(err)
	}
	if e.server, err = tunnel.NewServer(node, e.nodeNC, nodeCfg, tunnel.NewMetrics(e.nodeMetrics), newLogger(t, "node")); err != nil {
		t.Fatal(err)
	}
	if e.listener, err = e.server.Listen(port); err != nil {
		t.Fatal(err)
	}
	e.stopCloud, e.stopNode = startPart(t, e.dialer.Start), startPart(t, e.server.Start)
	<-e.dialer.Ready()
	<-e.server.Ready()
	// The node's interest needs time to reach the hub, and the Dialer's to reach the leaf.
	kit.Eventually(t, "first dial", func() bool {
		probe, err := e.dialer.Dial(t.Context(), node, 1)
		if err == nil {
			_ = probe.Close()
		}
		return errors.As(err, new(*tunnel.RefusedError))
	})
	return e
}

func newLogger(t testing.TB, name string) *zap.Logger {
	t.Helper()
	if _, bench := t.(*testing.B); bench {
		return zap.NewNop()
	}
	return zaptest.NewLogger(t).Named(name)
}

// startPart runs a part until the returned function is called, or the test ends.
func startPart(t testing.TB, part func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- part(ctx) }()
	ended := false
	stop = func() {
		cancel()
		if ended {
			return
		}
		ended = true
		if err := <-done; err != nil {
			t.Errorf("Start: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// dialStream opens one stream and returns both ends.
func (e *tunnelPair) dialStream(t testing.TB) (cloud, node *tunnel.Conn) {
	t.Helper()
	cloud, node, err := e.openStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cloud.Close()
		_ = node.Close()
	})
	return cloud, node
}

// openStream is dialStream for callers that handle errors. One call at a time: an accepted stream must belong to the dialled one.
func (e *tunnelPair) openStream(ctx context.Context) (cloud, at *tunnel.Conn, err error) {
	e.acceptor.Do(func() {
		e.accepted = make(chan *tunnel.Conn, 1024) // more than any test opens at a time
		go func() {
			for {
				c, err := e.listener.Accept()
				if err != nil {
					return // the listener is closed
				}
				e.accepted <- c.(*tunnel.Conn)
			}
		}()
	})
	if cloud, err = e.dialer.Dial(ctx, node, port); err != nil {
		return nil, nil, err
	}
	return cloud, <-e.accepted, nil
}

// sumMetric sums a metric over its labels, or takes the value of one label.
func sumMetric(t testing.TB, reg *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || len(m.GetLabel()) == 1 && m.GetLabel()[0].GetValue() == label) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}
