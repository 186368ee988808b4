package hubconf_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/internal/hubconf/hubtest"
	"github.com/frond-edge/frond/streams"
)

const (
	cells = 4
	thief = "gw-thief"
	// patience is generous: nothing here takes a second on an idle machine.
	patience = time.Minute
)

// town is a hub of three servers with a cloudcore, a thief's key, and two honest gateways: one in the thief's cell, one not.
type town struct {
	*testing.T
	hub    *hubtest.Hub
	key    nkeys.KeyPair // the thief's
	cloud  *nats.Conn
	js     jetstream.JetStream
	honest map[string]*nats.Conn

	mu sync.Mutex
	// seen are messages in FROND, guarded by mu.
	seen []string
}

// neighbours returns a name in the thief's cell and one in another.
func neighbours() (same, other string) {
	for i := 0; same == "" || other == ""; i++ {
		name := fmt.Sprint("gw-", i)
		if streams.CellAccount(name, cells) == streams.CellAccount(thief, cells) {
			same = name
		} else {
			other = name
		}
	}
	return same, other
}

func newTown(t *testing.T) *town {
	t.Helper()
	w := &town{T: t, hub: hubtest.Start(t, 3, cells), honest: map[string]*nats.Conn{}}
	keys := map[string]string{}
	var public string
	w.key, public = hubtest.Key(t)
	keys[public] = thief
	same, other := neighbours()
	pairs := map[string]nkeys.KeyPair{}
	for _, node := range []string{same, other} {
		pairs[node], public = hubtest.Key(t)
		keys[public] = node
	}
	w.hub.Answer(0, keys)
	w.cloud = w.hub.Connect(0, "cloudcore")
	var err error
	if w.js, err = jetstream.New(w.cloud); err != nil {
		t.Fatal(err)
	}
	if err := streams.Ensure(t.Context(), w.js, streams.Hub(3)); err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{thief, same, other} {
		_, err := w.js.CreateConsumer(t.Context(), streams.DesiredStream, jetstream.ConsumerConfig{
			Durable: node, FilterSubject: streams.Filter(streams.Desired, node), AckPolicy: jetstream.AckExplicitPolicy, MemoryStorage: true, Replicas: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.js.Publish(t.Context(), "desired."+node+".core.secrets.default.s", []byte("secret of "+node)); err != nil {
			t.Fatal(err)
		}
	}
	for _, node := range []string{same, other} {
		w.honest[node] = w.link("tls", w.hub.Leaf(1), node, pairs[node])
	}
	return w
}

// link returns a connection as an edgecore has it.
func (w *town) link(scheme, address, node string, key nkeys.KeyPair) *nats.Conn {
	w.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(w.hub.Leafed(scheme, address, node, key)), nats.CustomInboxPrefix(streams.InboxPrefix(node)))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(nc.Close)
	return nc
}

func (w *town) eventually(what string, condition func() bool) {
	w.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline.C:
			w.Fatalf("never: %s", what)
		case <-tick.C:
		}
	}
}

// run starts a part until the test ends.
func (w *town) run(start func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	var g errgroup.Group
	g.Go(func() error { return start(ctx) })
	w.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			w.Errorf("Start: %v", err)
		}
	})
}

// listen notes all that is said in FROND.
func (w *town) listen() {
	w.Helper()
	_, err := w.hub.Connect(2, "admin").Subscribe(">", func(m *nats.Msg) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.seen = append(w.seen, m.Subject+" "+string(m.Data))
	})
	if err != nil {
		w.Fatal(err)
	}
}

func (w *town) saw(text string) (found []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.seen {
		if strings.Contains(s, text) {
			found = append(found, s)
		}
	}
	return found
}

// orders counts what a gateway obeys.
func (w *town) orders(node string) func() int {
	w.Helper()
	var mu sync.Mutex
	obeyed := 0
	obey := func([]byte) {
		mu.Lock()
		defer mu.Unlock()
		obeyed++
	}
	w.run(streams.NewOrders(node, w.honest[node], map[string]func([]byte){streams.VerbResync: obey}, zaptest.NewLogger(w)).Start)
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return obeyed
	}
}
