package cloud

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/streams"
	"github.com/frond-edge/frond/streams/streamstest"
)

// fence is how long a fence holds here: longer than an agent takes to say that it is fenced.
const fence = 4 * time.Second

// agent is one process of a gateway: its delivery behind a gate, its heartbeat and its ear.
type agent struct {
	gate     *streams.Gate
	store    *store.Store
	delivery *streams.Delivery
	stop     func()
}

// newAgent starts an agent of the gateway on a copy of its disk: a store of its own.
func newAgent(t *testing.T, hub *server.Server, st *store.Store) *agent {
	t.Helper()
	log := zaptest.NewLogger(t)
	nc := streamstest.Node(t, hub, edge)
	a := &agent{gate: streams.NewGate(alwaysUp{make(chan struct{})}, log), store: st}
	var err error
	if a.delivery, err = streams.NewDelivery(edge, nc, st, a.gate, streams.NewMetrics(nil), log); err != nil {
		t.Fatal(err)
	}
	beater := streams.NewBeater(edge, nc, func(bool) wire.Beat {
		instance, since := a.delivery.Identity()
		return wire.Beat{Cursor: st.Cursor(), Instance: instance, Since: since.Milliseconds(), Fenced: a.gate.Fenced()}
	}, log)
	orders := streams.NewOrders(edge, nc, map[string]func([]byte){
		streams.VerbWho: beater.Answer,
		streams.VerbFence: func(instance []byte) {
			if own, _ := a.delivery.Identity(); own == string(instance) {
				a.gate.Fence(fence)
			}
		},
	}, log)
	var stops []func()
	for _, part := range []func(context.Context) error{orders.Start, a.gate.Start, beater.Start, a.delivery.Start} {
		stops = append(stops, start(t, part))
	}
	a.stop = sync.OnceFunc(func() {
		for _, stop := range stops {
			stop()
		}
		nc.Close()
	})
	return a
}

// disk opens a store on a server of its own.
func disk(t *testing.T) *store.Store {
	t.Helper()
	js, err := jetstream.New(streamstest.Connect(t, streamstest.Hub(t)))
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(t.Context(), js, store.Config{}, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// watched is a cloud that looks out for twins.
func watched(t *testing.T) (hub *server.Server, publisher *streams.Publisher, fenced, asked func() int) {
	t.Helper()
	hub = streamstest.Hub(t)
	log := zaptest.NewLogger(t)
	nc := streamstest.Connect(t, hub)
	var mu sync.Mutex
	fences, again := 0, 0
	count := func(n *int) func() int {
		return func() int {
			mu.Lock()
			defer mu.Unlock()
			return *n
		}
	}
	w := newTwins(func(string) bool { return true },
		func(node, question string) error { return streams.Order(nc, node, streams.VerbWho, []byte(question)) },
		func(node, instance string) error {
			mu.Lock()
			defer mu.Unlock()
			fences++
			return streams.Order(nc, node, streams.VerbFence, []byte(instance))
		}, func(string) error {
			mu.Lock()
			defer mu.Unlock()
			again++
			return nil
		}, func(string, string, string) {}, rand.Text, prometheus.NewRegistry(), log)
	beats, err := streams.NewBeats(nc, func(_ context.Context, node string, beat wire.Beat) { w.hear(node, beat, time.Now()) }, streams.NewMetrics(nil), log)
	if err != nil {
		t.Fatal(err)
	}
	attacher, err := streams.NewAttacher(nc, func(context.Context, string) bool { return false },
		func(node, instance string) { w.attached(node, instance, time.Now()) }, streams.NewMetrics(nil), log)
	if err != nil {
		t.Fatal(err)
	}
	calls, err := streams.NewCalls(nc, map[string]streams.CallHandler{streams.VerbAttach: attacher.Handle}, streams.NewMetrics(nil), log)
	if err != nil {
		t.Fatal(err)
	}
	if publisher, err = streams.NewPublisher(nc, streams.NewMetrics(nil)); err != nil {
		t.Fatal(err)
	}
	start(t, beats.Start)
	start(t, calls.Start)
	return hub, publisher, count(&fences), count(&again)
}

// attached waits until an agent was served for a moment.
func attached(t *testing.T, a *agent) {
	t.Helper()
	streamstest.Eventually(t, "the agent is served", func() bool {
		_, since := a.delivery.Identity()
		return since > 50*time.Millisecond
	})
}

func TestTheLaterOfTwoAgentsWithOneIdentityIsFenced(t *testing.T) {
	hub, publisher, _, asked := watched(t)
	one, two := disk(t), disk(t)
	first := newAgent(t, hub, one)
	attached(t, first)
	second := newAgent(t, hub, two)
	streamstest.Eventually(t, "the later one is fenced", second.gate.Fenced)
	if first.gate.Fenced() {
		t.Fatal("the one that was there first is fenced")
	}
	key := thing("a")
	streamstest.Eventually(t, "all is asked for again when it is fenced, and when it says so", func() bool { return asked() > 1 })
	m := wire.Message{Node: edge, Key: key, Op: wire.Apply, UID: "u", Version: "1", Time: time.Now(), Object: body(key, "u", "1")}
	if _, err := publisher.Publish(t.Context(), m, 0); err != nil {
		t.Fatal(err)
	}
	streamstest.Eventually(t, "the first one is served", func() bool {
		_, err := first.store.Get(key)
		return err == nil
	})
	first.stop()
	streamstest.Eventually(t, "the later one is served when the first is gone", func() bool {
		_, err := second.store.Get(key)
		return err == nil && !second.gate.Fenced()
	})
}

// A gateway that is restarted, however quickly, is no twin of itself.
func TestAQuickRestartIsNoTwin(t *testing.T) {
	hub, _, fenced, _ := watched(t)
	st := disk(t)
	for range 8 {
		a := newAgent(t, hub, st)
		attached(t, a)
		a.stop()
	}
	last := newAgent(t, hub, st)
	attached(t, last)
	if n := fenced(); n != 0 || last.gate.Fenced() {
		t.Errorf("%d fences", n)
	}
}

// A stolen gateway may say what it likes.
func TestWhatIsRememberedOfANodeIsBounded(t *testing.T) {
	w := newTwins(func(string) bool { return true }, func(_, _ string) error { return nil }, func(_, _ string) error { return nil },
		func(string) error { return nil }, func(string, string, string) {}, rand.Text, prometheus.NewRegistry(), zaptest.NewLogger(t))
	long := strings.Repeat("x", nameMost+1)
	w.hear(edge, wire.Beat{Instance: long, Who: "q"}, time.Now())
	w.hear(edge, wire.Beat{Instance: "i", Who: long}, time.Now())
	if len(w.nodes) > 0 {
		t.Error("what is too long is remembered")
	}
	for i := range 1000 {
		fenced := i%2 == 0
		w.hear(edge, wire.Beat{Instance: fmt.Sprint(i), Who: "q", Fenced: fenced}, time.Now())
		w.hear(edge, wire.Beat{Instance: fmt.Sprint(i), Who: fmt.Sprint(i), Fenced: fenced}, time.Now())
	}
	a := w.nodes[edge]
	if len(a.answers) > questionsKept || len(a.order) > questionsKept || len(a.fenced) > fencedKept {
		t.Errorf("%d questions, %d fenced", len(a.answers), len(a.fenced))
	}
	w.hear(edge, wire.Beat{Instance: "i", Who: "the last"}, time.Now())
	for i := range 100 {
		w.hear(edge, wire.Beat{Instance: fmt.Sprint(i), Who: "the last"}, time.Now())
	}
	if n := len(a.answers["the last"]); n != answersKept {
		t.Errorf("%d answers to one question", n)
	}
}

func TestFirstOf(t *testing.T) {
	for name, tt := range map[string]struct {
		rivals map[string]wire.Beat
		want   string
	}{
		"the longest":                  {map[string]wire.Beat{"a": {Since: 5}, "b": {Since: 9}, "c": {Since: 1}}, "b"},
		"not a fenced one":             {map[string]wire.Beat{"a": {Since: 5}, "b": {Since: 9, Fenced: true}}, "a"},
		"the longest of fenced ones":   {map[string]wire.Beat{"a": {Since: 5, Fenced: true}, "b": {Since: 9, Fenced: true}}, "b"},
		"by name where all are equal":  {map[string]wire.Beat{"b": {}, "a": {}}, "a"},
		"a fenced one before it knows": {map[string]wire.Beat{"a": {Since: 0}, "b": {Since: 100, Fenced: true}}, "a"},
	} {
		for range 20 { // maps have many orders
			if got := firstOf(tt.rivals); got != tt.want {
				t.Errorf("%s: %s stays, want %s", name, got, tt.want)
			}
		}
	}
}
