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

	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/hubtest"
)

const (
	cells = 4
	thief = "gw-thief"
	// waitTimeout is generous: nothing here takes a second on an idle machine.
	waitTimeout = time.Minute
)

// testHub is a hub of three servers with a cloudcore, a thief's key, and two honest gateways: one in the thief's cell, one not.
type testHub struct {
	*testing.T
	hub         *hubtest.Hub
	thiefKey    nkeys.KeyPair // the thief's
	cloud       *nats.Conn
	js          jetstream.JetStream
	honestConns map[string]*nats.Conn

	mu sync.Mutex
	// messages are messages in FROND, guarded by mu.
	messages []string
}

// otherNodes returns the name of a node in the thief's cell and of one in another cell.
func otherNodes() (same, other string) {
	for i := 0; same == "" || other == ""; i++ {
		name := fmt.Sprint("gw-", i)
		if subject.CellAccount(name, cells) == subject.CellAccount(thief, cells) {
			same = name
		} else {
			other = name
		}
	}
	return same, other
}

func startTestHub(t *testing.T) *testHub {
	t.Helper()
	w := &testHub{T: t, hub: hubtest.Start(t, 3, cells), honestConns: map[string]*nats.Conn{}}
	keys := map[string]string{}
	var public string
	w.thiefKey, public = hubtest.NewKey(t)
	keys[public] = thief
	same, other := otherNodes()
	pairs := map[string]nkeys.KeyPair{}
	for _, node := range []string{same, other} {
		pairs[node], public = hubtest.NewKey(t)
		keys[public] = node
	}
	w.hub.AnswerCallout(0, keys)
	w.cloud = w.hub.Connect(0, "cloudcore")
	var err error
	if w.js, err = jetstream.New(w.cloud); err != nil {
		t.Fatal(err)
	}
	if err := topology.Ensure(t.Context(), w.js, topology.HubTopology(3, subject.Layout{})); err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{thief, same, other} {
		_, err := w.js.CreateConsumer(t.Context(), subject.DesiredStream, jetstream.ConsumerConfig{
			Durable: node, FilterSubject: subject.Filter(subject.Desired, node), AckPolicy: jetstream.AckExplicitPolicy, MemoryStorage: true, Replicas: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.js.Publish(t.Context(), "desired."+node+".core.secrets.default.s", []byte("secret of "+node)); err != nil {
			t.Fatal(err)
		}
	}
	for _, node := range []string{same, other} {
		w.honestConns[node] = w.connectLeaf("tls", w.hub.LeafAddr(1), node, pairs[node])
	}
	return w
}

// connectLeaf returns a connection like an edgecore's.
func (w *testHub) connectLeaf(scheme, address, node string, key nkeys.KeyPair) *nats.Conn {
	w.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(w.hub.StartLeaf(scheme, address, node, key)), nats.CustomInboxPrefix(subject.InboxPrefix(node)))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(nc.Close)
	return nc
}

func (w *testHub) eventually(what string, condition func() bool) {
	w.Helper()
	kit.Within(w, waitTimeout, what, condition)
}

// startPart runs a part until the test ends.
func (w *testHub) startPart(start func(context.Context) error) {
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

// recordMessages records all messages in FROND.
func (w *testHub) recordMessages() {
	w.Helper()
	_, err := w.hub.Connect(2, "admin").Subscribe(">", func(m *nats.Msg) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.messages = append(w.messages, m.Subject+" "+string(m.Data))
	})
	if err != nil {
		w.Fatal(err)
	}
}

func (w *testHub) messagesWith(text string) (found []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.messages {
		if strings.Contains(s, text) {
			found = append(found, s)
		}
	}
	return found
}

// countCommands counts the commands that a gateway executes.
func (w *testHub) countCommands(node string) func() int {
	w.Helper()
	var mu sync.Mutex
	obeyed := 0
	obey := func([]byte) {
		mu.Lock()
		defer mu.Unlock()
		obeyed++
	}
	w.startPart(call.NewCommandListener(node, w.honestConns[node], map[string]func([]byte){call.VerbResync: obey}, metrics.New(nil), zaptest.NewLogger(w)).Start)
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return obeyed
	}
}
