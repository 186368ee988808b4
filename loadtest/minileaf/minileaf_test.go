package minileaf_test

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/loadtest/minileaf"
	"github.com/frond-edge/frond/test/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startHub runs a server with a leaf listener and JetStream.
func startHub(t *testing.T) (*server.Server, *nats.Conn) {
	t.Helper()
	o := &server.Options{ServerName: "hub", DontListen: true, NoLog: true, NoSigs: true, JetStream: true, StoreDir: t.TempDir(), MaxPayload: 8 << 20}
	o.LeafNode.Host, o.LeafNode.Port = "127.0.0.1", server.RANDOM_PORT
	s, err := server.NewServer(o)
	kit.Must(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("hub not ready")
	}
	nc, err := nats.Connect("", nats.InProcessServer(s))
	kit.Must(t, err)
	t.Cleanup(nc.Close)
	return s, nc
}

func leafAddress(t *testing.T, s *server.Server) string {
	t.Helper()
	v, err := s.Varz(nil)
	kit.Must(t, err)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(v.LeafNode.Port))
}

type client struct {
	*minileaf.Leaf
	nc       *nats.Conn
	counters *minileaf.Counters
	mu       sync.Mutex
	faults   []error // guarded by mu
}

// startLeaf starts a leaf at an address, with its client.
func startLeaf(t *testing.T, address string, silentAfter time.Duration) *client {
	t.Helper()
	c := &client{counters: &minileaf.Counters{}}
	c.Leaf = minileaf.New(minileaf.Config{
		Name: "edge-1", Domain: "edge-1", Address: func() string { return address }, Subscribe: []string{"_INBOX.edge-1.>", "orders.*"},
		Counters: c.counters, PingInterval: silentAfter, RedialMin: 50 * time.Millisecond,
	}, zaptest.NewLogger(t))
	nc, err := c.Connect("_INBOX.edge-1", func(err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.faults = append(c.faults, err)
	})
	kit.Must(t, err)
	c.nc = nc
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return c.Start(ctx) })
	t.Cleanup(func() {
		cancel()
		kit.Must(t, g.Wait())
		nc.Close()
	})
	return c
}

func (c *client) awaitUp(t *testing.T) {
	t.Helper()
	kit.Eventually(t, "a link", func() bool { up, _ := c.State(); return up })
}

// A client behind a leaf asks, publishes with headers to a stream and gets its acks, and hears what the hub sends.
func TestLeaf_ClientUsesHub(t *testing.T) {
	hub, cloud := startHub(t)
	js, err := jetstream.New(cloud)
	kit.Must(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "R", Subjects: []string{"report.>"}})
	kit.Must(t, err)
	echo, err := cloud.QueueSubscribe("ask", "cloudcore", func(m *nats.Msg) { _ = m.Respond([]byte("re: " + string(m.Data))) })
	kit.Must(t, err)
	defer func() { _ = echo.Unsubscribe() }()
	c := startLeaf(t, leafAddress(t, hub), 0)
	c.awaitUp(t)
	for _, text := range []string{"a", strings.Repeat("x", 200_000), ""} {
		kit.Eventually(t, "an answer", func() bool {
			m, err := c.nc.Request("ask", []byte(text), 5*time.Second)
			return err == nil && string(m.Data) == "re: "+text
		})
	}
	up, err := jetstream.New(c.nc)
	kit.Must(t, err)
	for range 2 {
		ack, err := up.PublishMsg(t.Context(), &nats.Msg{Subject: "report.a", Data: []byte("state"), Header: nats.Header{"Frond-Op": {"apply"}}}, jetstream.WithMsgID("one"))
		kit.Must(t, err)
		if ack.Sequence != 1 {
			t.Errorf("stored at %d", ack.Sequence)
		}
	}
	orders := make(chan *nats.Msg, 1)
	_, err = c.nc.ChanSubscribe("orders.*", orders)
	kit.Must(t, err)
	kit.Must(t, c.nc.Flush())
	kit.Must(t, cloud.PublishMsg(&nats.Msg{Subject: "orders.report", Data: []byte("now"), Header: nats.Header{"Frond-Cloud": {"1"}}}))
	select {
	case m := <-orders:
		if m.Subject != "orders.report" || string(m.Data) != "now" || m.Header.Get("Frond-Cloud") != "1" {
			t.Errorf("received %+v", m)
		}
	case <-time.After(time.Minute):
		t.Fatal("no order")
	}
}

// A cut link is dialled again once it may; meanwhile what the client sends is dropped and counted, and its connection stays.
func TestLeaf_CutAndHeal(t *testing.T) {
	hub, cloud := startHub(t)
	_, err := cloud.Subscribe("ask", func(m *nats.Msg) { _ = m.Respond(m.Data) })
	kit.Must(t, err)
	kit.Must(t, cloud.Flush())
	c := startLeaf(t, leafAddress(t, hub), 0)
	c.awaitUp(t)
	c.SetCut(true)
	kit.Eventually(t, "no link", func() bool { up, _ := c.State(); return !up })
	kit.Must(t, c.nc.Publish("beat", []byte("x")))
	kit.Must(t, c.nc.Flush())
	if n := c.counters.Dropped.Load(); n != 1 {
		t.Errorf("%d messages dropped, want 1", n)
	}
	c.SetCut(false)
	c.awaitUp(t)
	kit.Eventually(t, "an answer", func() bool { _, err := c.nc.Request("ask", nil, 5*time.Second); return err == nil })
	if n := c.counters.Linked.Load(); n != 1 {
		t.Errorf("%d leafs linked", n)
	}
}

// A message that no subscription wants is counted, and one that a subscription does not read in time is told.
func TestLeaf_UnreadMessagesAreSeen(t *testing.T) {
	hub, cloud := startHub(t)
	c := startLeaf(t, leafAddress(t, hub), 0)
	c.awaitUp(t)
	kit.Must(t, cloud.Publish("_INBOX.edge-1.nobody", []byte("x")))
	kit.Eventually(t, "it is counted", func() bool { return c.counters.Unclaimed.Load() == 1 })
	full := make(chan *nats.Msg, 1)
	_, err := c.nc.ChanSubscribe("orders.*", full)
	kit.Must(t, err)
	kit.Must(t, c.nc.Flush())
	for range 5 {
		kit.Must(t, cloud.Publish("orders.x", nil))
	}
	kit.Eventually(t, "it is told", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.Contains(c.faults, nats.ErrSlowConsumer)
	})
}

// A hub that answers nothing any more is given up, and dialled again.
func TestLeaf_HalfOpenLinkIsDialledAgain(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // of this test
	kit.Must(t, err)
	var held errgroup.Group
	var mu sync.Mutex
	var conns []net.Conn
	held.Go(func() error {
		for {
			conn, err := silent.Accept()
			if err != nil {
				return nil //nolint:nilerr // the test has ended
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			_, _ = conn.Write([]byte("INFO {\"nonce\":\"n\"}\r\nPONG\r\n")) // and nothing after it
		}
	})
	c := startLeaf(t, silent.Addr().String(), 100*time.Millisecond)
	kit.Eventually(t, "a second dial", func() bool { return c.counters.Dials.Load() >= 2 })
	kit.Must(t, silent.Close())
	kit.Must(t, held.Wait())
	mu.Lock()
	defer mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
	}
}

// A message that a consumer of the hub delivers to an inbox of the client has its own subject, and coordinates that can be read.
func TestLeaf_ConsumerDeliversToClient(t *testing.T) {
	hub, cloud := startHub(t)
	js, err := jetstream.New(cloud)
	kit.Must(t, err)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "D", Subjects: []string{"desired.>"}})
	kit.Must(t, err)
	_, err = stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy})
	kit.Must(t, err)
	_, err = js.Publish(t.Context(), "desired.edge-1.a", []byte("state"))
	kit.Must(t, err)
	c := startLeaf(t, leafAddress(t, hub), 0)
	c.awaitUp(t)
	came := make(chan *nats.Msg, 8)
	_, err = c.nc.ChanSubscribe("_INBOX.edge-1.pull", came)
	kit.Must(t, err)
	kit.Must(t, c.nc.Flush())
	kit.Must(t, cloud.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.D.c", "_INBOX.edge-1.pull", []byte(`{"batch":1,"expires":60000000000}`)))
	select {
	case m := <-came:
		meta, err := m.Metadata()
		if err != nil || m.Subject != "desired.edge-1.a" || string(m.Data) != "state" || meta.Sequence.Consumer != 1 || meta.Sequence.Stream != 1 {
			t.Errorf("received %s with reply %s: %v", m.Subject, m.Reply, err)
		}
	case <-time.After(time.Minute):
		t.Fatal("no message")
	}
}

// A leaf sends what the hub's INFO allows. Without permissions in it, it may send all.
func TestLeaf_KeepsToPermissions(t *testing.T) {
	const info = `{"import":{"allow":["_INBOX.K.>"]},"export":{"allow":["call.cloud.K.>"],"deny":["call.cloud.K.secret"]}}`
	for subject, want := range map[string][2]bool{
		"_INBOX.K.>": {true, false}, "_INBOX.edge-1.>": {false, false}, "call.cloud.K.enrol": {false, true}, "call.cloud.K.secret": {false, false},
	} {
		subscribe, publish, err := minileaf.Permitted(info, subject)
		kit.Must(t, err)
		if got := [2]bool{subscribe, publish}; got != want {
			t.Errorf("%s: subscribe, publish %v, want %v", subject, got, want)
		}
	}
	if subscribe, publish, err := minileaf.Permitted(`{"nonce":"n"}`, "a"); !subscribe || !publish || err != nil {
		t.Errorf("without permissions: %v %v %v", subscribe, publish, err)
	}
	if _, _, err := minileaf.Permitted(`{"import":7}`, "a"); err == nil {
		t.Error("an INFO that cannot be read is taken")
	}
}
