package nodehealth

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
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/deliver"
	"github.com/frond-edge/frond/streams/link"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/publish"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// fenceTime is how long a fence lasts here: longer than an agent takes to report that it is fenced.
const fenceTime = 4 * time.Second

// agentProcess is one process of a gateway: its delivery behind a gate, its heartbeats and its command subscription.
type agentProcess struct {
	link     *link.FencedLink
	store    *store.Store
	delivery *deliver.Delivery
	stop     func()
}

// newAgent starts an agent of the gateway on a copy of its disk: a store of its own.
func newAgent(t *testing.T, hub *server.Server, st *store.Store) *agentProcess {
	t.Helper()
	log := zaptest.NewLogger(t)
	nc := streamstest.Node(t, hub, edgeNode)
	a := &agentProcess{link: link.NewFencedLink(linkAlwaysUp{make(chan struct{})}, log), store: st}
	var err error
	if a.delivery, err = deliver.NewDelivery(deliver.Config{Node: edgeNode}, nc, st, a.link, metrics.New(nil), log); err != nil {
		t.Fatal(err)
	}
	beater := call.NewHeartbeater(edgeNode, nc, func(bool) wire.Heartbeat {
		instance, since := a.delivery.Identity()
		return wire.Heartbeat{Cursor: st.Cursor(), Instance: instance, Since: since.Milliseconds(), Fenced: a.link.Fenced()}
	}, log)
	orders := call.NewCommandListener(edgeNode, nc, map[string]func([]byte){
		call.VerbWho: beater.AnswerProbe,
		call.VerbFence: func(instance []byte) {
			if own, _ := a.delivery.Identity(); own == string(instance) {
				a.link.Fence(fenceTime)
			}
		},
	}, metrics.New(nil), log)
	var stops []func()
	for _, part := range []func(context.Context) error{orders.Start, a.link.Start, beater.Start, a.delivery.Start} {
		stops = append(stops, startPart(t, part))
	}
	a.stop = sync.OnceFunc(func() {
		for _, stop := range stops {
			stop()
		}
		nc.Close()
	})
	return a
}

// openStore opens a store on a server of its own.
func openStore(t *testing.T) *store.Store {
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

// startDetector starts a cloud with a DuplicateDetector.
func startDetector(t *testing.T) (hub *server.Server, publisher *publish.Publisher, fenced, asked func() int) {
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
	w := NewDuplicateDetector(func(string) bool { return true }, NodeCommands{
		SendProbe: func(node, question string) error {
			return call.SendCommand(nc, node, call.VerbWho, []byte(question))
		},
		FenceAgent: func(node, instance string) error {
			mu.Lock()
			defer mu.Unlock()
			fences++
			return call.SendCommand(nc, node, call.VerbFence, []byte(instance))
		},
		RequestReports: func(string) error {
			mu.Lock()
			defer mu.Unlock()
			again++
			return nil
		},
	}, func(string, string, string) {}, rand.Text, prometheus.NewRegistry(), log)
	beats, err := call.NewHeartbeats(nc, func(_ context.Context, node string, beat wire.Heartbeat) { w.ObserveHeartbeat(node, beat, time.Now()) }, metrics.New(nil), log)
	if err != nil {
		t.Fatal(err)
	}
	attacher, err := publish.NewAttacher(publish.AttacherConfig{
		NodeExists: func(context.Context, string) bool { return false },
		OnAttached: func(node, instance string) { w.ProbeAttached(node, instance, time.Now()) },
	}, nc, subject.Layout{}, metrics.New(nil), log)
	if err != nil {
		t.Fatal(err)
	}
	calls, err := call.NewServer(nc, map[string]call.Handler{subject.VerbAttach: attacher.Handle}, metrics.New(nil), log)
	if err != nil {
		t.Fatal(err)
	}
	if publisher, err = publish.NewPublisher(nc, subject.Layout{}, metrics.New(nil)); err != nil {
		t.Fatal(err)
	}
	startPart(t, beats.Start)
	startPart(t, calls.Start)
	return hub, publisher, count(&fences), count(&again)
}

// waitAttached waits until an agent was served for a moment.
func waitAttached(t *testing.T, a *agentProcess) {
	t.Helper()
	kit.Eventually(t, "the agent is served", func() bool {
		_, since := a.delivery.Identity()
		return since > 50*time.Millisecond
	})
}

func TestDuplicateDetector_FencesTheLaterAgent(t *testing.T) {
	hub, publisher, _, asked := startDetector(t)
	one, two := openStore(t), openStore(t)
	first := newAgent(t, hub, one)
	waitAttached(t, first)
	second := newAgent(t, hub, two)
	kit.Eventually(t, "the later one is fenced", second.link.Fenced)
	if first.link.Fenced() {
		t.Fatal("the one that was there first is fenced")
	}
	key := configMapKey("a")
	kit.Eventually(t, "all is asked for again when it is fenced, and when it says so", func() bool { return asked() > 1 })
	m := wire.Message{Node: edgeNode, Key: key, Op: wire.Apply, UID: "u", Version: "1", Time: time.Now(), Object: objectBody(key, "u", "1")}
	if _, err := publisher.Publish(t.Context(), m, 0); err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, "the first one is served", func() bool {
		_, err := first.store.Get(key)
		return err == nil
	})
	first.stop()
	kit.Eventually(t, "the later one is served when the first is gone", func() bool {
		_, err := second.store.Get(key)
		return err == nil && !second.link.Fenced()
	})
}

// A gateway that is restarted, however quickly, is no duplicate of itself.
func TestDuplicateDetector_QuickRestartIsNoDuplicate(t *testing.T) {
	hub, _, fenced, _ := startDetector(t)
	st := openStore(t)
	for range 8 {
		a := newAgent(t, hub, st)
		waitAttached(t, a)
		a.stop()
	}
	last := newAgent(t, hub, st)
	waitAttached(t, last)
	if n := fenced(); n != 0 || last.link.Fenced() {
		t.Errorf("%d fences", n)
	}
}

// A stolen gateway may send anything.
func TestDuplicateDetector_BoundsMemory(t *testing.T) {
	w := NewDuplicateDetector(func(string) bool { return true }, NodeCommands{
		SendProbe: func(_, _ string) error { return nil }, FenceAgent: func(_, _ string) error { return nil }, RequestReports: func(string) error { return nil },
	}, func(string, string, string) {}, rand.Text, prometheus.NewRegistry(), zaptest.NewLogger(t))
	long := strings.Repeat("x", maxNameLength+1)
	w.ObserveHeartbeat(edgeNode, wire.Heartbeat{Instance: long, Probe: "q"}, time.Now())
	w.ObserveHeartbeat(edgeNode, wire.Heartbeat{Instance: "i", Probe: long}, time.Now())
	if len(w.nodes) > 0 {
		t.Error("what is too long is remembered")
	}
	for i := range 1000 {
		fenced := i%2 == 0
		w.ObserveHeartbeat(edgeNode, wire.Heartbeat{Instance: fmt.Sprint(i), Probe: "q", Fenced: fenced}, time.Now())
		w.ObserveHeartbeat(edgeNode, wire.Heartbeat{Instance: fmt.Sprint(i), Probe: fmt.Sprint(i), Fenced: fenced}, time.Now())
	}
	a := w.nodes[edgeNode]
	if len(a.answers) > maxProbes || len(a.probeOrder) > maxProbes || len(a.fenced) > maxFenced {
		t.Errorf("%d questions, %d fenced", len(a.answers), len(a.fenced))
	}
	w.ObserveHeartbeat(edgeNode, wire.Heartbeat{Instance: "i", Probe: "the last"}, time.Now())
	for i := range 100 {
		w.ObserveHeartbeat(edgeNode, wire.Heartbeat{Instance: fmt.Sprint(i), Probe: "the last"}, time.Now())
	}
	if n := len(a.answers["the last"]); n != maxAnswers {
		t.Errorf("%d answers to one question", n)
	}
}

func TestPickSurvivor(t *testing.T) {
	for name, tt := range map[string]struct {
		rivals map[string]wire.Heartbeat
		want   string
	}{
		"the longest":                  {map[string]wire.Heartbeat{"a": {Since: 5}, "b": {Since: 9}, "c": {Since: 1}}, "b"},
		"not a fenced one":             {map[string]wire.Heartbeat{"a": {Since: 5}, "b": {Since: 9, Fenced: true}}, "a"},
		"the longest of fenced ones":   {map[string]wire.Heartbeat{"a": {Since: 5, Fenced: true}, "b": {Since: 9, Fenced: true}}, "b"},
		"by name where all are equal":  {map[string]wire.Heartbeat{"b": {}, "a": {}}, "a"},
		"a fenced one before it knows": {map[string]wire.Heartbeat{"a": {Since: 0}, "b": {Since: 100, Fenced: true}}, "a"},
	} {
		for range 20 { // the iteration order of maps varies
			if got := pickSurvivor(tt.rivals); got != tt.want {
				t.Errorf("%s: %s stays, want %s", name, got, tt.want)
			}
		}
	}
}
