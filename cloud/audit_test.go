package cloud

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/streams"
	"github.com/frond-edge/frond/streams/streamstest"
)

const edge = "edge-1"

// start runs a part until the returned function is called, or the test ends.
func start(t *testing.T, part func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return part(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Errorf("Start: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// held is the truth as the stream has it.
type held struct {
	t         *testing.T
	publisher *streams.Publisher
}

func (h held) Census(node string, except []wire.Key) (census wire.Census, upTo uint64, known bool) {
	all, err := h.publisher.Held(h.t.Context(), node)
	if err != nil {
		return census, 0, false
	}
	for _, key := range except {
		delete(all, key)
	}
	for key, m := range all {
		upTo = max(upTo, m.Sequence)
		if m.Op == wire.Apply && key != wire.SnapshotMarker() {
			census.Add(key, m.UID, m.Version)
		}
	}
	return census, upTo, true
}

func (h held) Reload(...string) {}

// audited is a node's half of the wire over a real store, and the audit of it.
type audited struct {
	*testing.T
	hub       *server.Server
	publisher *streams.Publisher
	store     *store.Store
	stop      func() // of the delivery
	audit     *audit
	js        jetstream.JetStream
	now       time.Time
}

type alwaysUp struct{ never chan struct{} }

func (l alwaysUp) State() (bool, <-chan struct{}) { return true, l.never }

func newGateway(t *testing.T) *audited {
	t.Helper()
	g := &audited{T: t, hub: streamstest.Hub(t), now: time.Now()}
	log := zaptest.NewLogger(t)
	nc := streamstest.Connect(t, g.hub)
	var err error
	if g.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	if g.publisher, err = streams.NewPublisher(nc, streams.NewMetrics(nil)); err != nil {
		t.Fatal(err)
	}
	attacher, err := streams.NewAttacher(nc, func(context.Context, string) bool { return true }, func(string, string) {}, streams.NewMetrics(nil), log)
	if err != nil {
		t.Fatal(err)
	}
	calls, err := streams.NewCalls(nc, map[string]streams.CallHandler{streams.VerbAttach: attacher.Handle}, streams.NewMetrics(nil), log)
	if err != nil {
		t.Fatal(err)
	}
	start(t, calls.Start)
	if g.store, err = store.Open(t.Context(), g.js, store.Config{}, log); err != nil {
		t.Fatal(err)
	}
	g.publish(wire.SnapshotMarker(), "1")
	g.deliver()
	g.audit = newAudit(func(string) bool { return true }, held{t, g.publisher},
		func(node string) error { return streams.Order(nc, node, streams.VerbResync, nil) },
		func(string, string, string) {}, prometheus.NewRegistry(), log)
	return g
}

// deliver starts the node's delivery.
func (g *audited) deliver() {
	g.Helper()
	nc := streamstest.Node(g.T, g.hub, edge)
	delivery, err := streams.NewDelivery(edge, nc, g.store, alwaysUp{make(chan struct{})}, streams.NewMetrics(nil), zaptest.NewLogger(g.T))
	if err != nil {
		g.Fatal(err)
	}
	orders := streams.NewOrders(edge, nc, map[string]func([]byte){streams.VerbResync: func([]byte) { delivery.Resync() }}, zaptest.NewLogger(g.T))
	first, second := start(g.T, delivery.Start), start(g.T, orders.Start)
	g.stop = func() { first(); second() }
}

func thing(name string) wire.Key {
	return wire.Key{Resource: "configmaps", Namespace: "default", Name: name}
}

func body(key wire.Key, uid, version string) []byte {
	return fmt.Appendf(nil, `{"metadata":{"name":%q,"namespace":%q,"uid":%q,"resourceVersion":%q}}`, key.Name, key.Namespace, uid, version)
}

// publish stores the next state of an object, version "" for none.
func (g *audited) publish(key wire.Key, version string) uint64 {
	g.Helper()
	all, err := g.publisher.Held(g.Context(), edge)
	if err != nil {
		g.Fatal(err)
	}
	uid := "uid-" + key.Name
	m := wire.Message{Node: edge, Key: key, Op: wire.Apply, UID: uid, Version: version, Time: time.Now(), Object: body(key, uid, version)}
	if version == "" {
		m.Op, m.Object = wire.Delete, nil
	}
	sequence, err := g.publisher.Publish(g.Context(), m, all[key].Sequence)
	if err != nil {
		g.Fatal(err)
	}
	return sequence
}

// version is what the store has of an object.
func (g *audited) version(key wire.Key) string {
	entry, err := g.store.Get(key)
	if err != nil {
		return ""
	}
	return entry.Version
}

func (g *audited) wait(key wire.Key, version string) {
	g.Helper()
	streamstest.Eventually(g.T, fmt.Sprintf("%s at version %q", key.Name, version), func() bool { return g.version(key) == version })
}

// beat lets the audit hear the node as it is now.
func (g *audited) beat() {
	g.Helper()
	stream, err := g.js.Stream(g.Context(), streams.DesiredStream)
	if err != nil {
		g.Fatal(err)
	}
	cursor, census, deleted := g.store.Census()
	beat := wire.Beat{Cursor: cursor, Census: &census}
	for _, key := range deleted {
		beat.Deleted = append(beat.Deleted, key.String())
	}
	g.now = g.now.Add(10 * time.Second)
	g.audit.beat(edge, beat, stream.CachedInfo().Created.UTC().Format("20060102T150405.000000000Z"), g.now)
}

// heal beats until the object is as the cloud has it.
func (g *audited) heal(key wire.Key, version string) {
	g.Helper()
	streamstest.Eventually(g.T, fmt.Sprintf("%s at version %q after the audit", key.Name, version), func() bool {
		if g.version(key) == version {
			return true
		}
		g.beat()
		return false
	})
}

// An image of the disk, older than a deletion whose tombstone the node had acked: nothing in the stream speaks of it any more.
func TestAuditTakesAwayWhatAnOldDiskImageBringsBack(t *testing.T) {
	g := newGateway(t)
	gone, kept := thing("gone"), thing("kept")
	g.publish(gone, "1")
	g.publish(kept, "1")
	g.wait(kept, "1")
	g.stop() // the image is of this moment
	if err := g.publisher.Purge(t.Context(), edge, gone, g.publish(gone, "")); err != nil {
		t.Fatal(err)
	}
	g.deliver()
	g.publish(kept, "2")
	g.wait(kept, "2")
	if g.version(gone) != "1" {
		t.Fatal("the deletion came by itself, so nothing is shown")
	}
	g.heal(gone, "")
	g.wait(kept, "2")
}

// A hub restored from a backup counts again from there: what is published at a sequence that the node has passed never
// comes to it.
func TestAuditHealsARestoredHub(t *testing.T) {
	g := newGateway(t)
	lost := thing("lost")
	g.publish(lost, "1")
	g.wait(lost, "1")
	g.stop()
	if err := g.store.Apply(t.Context(), nil, g.store.Cursor().Sequence+5); err != nil { // as before the restore
		t.Fatal(err)
	}
	g.publish(lost, "2")
	other := thing("other")
	for i := range 10 {
		g.publish(other, fmt.Sprint(i)) // the restored stream grows past the cursor
	}
	g.deliver()
	g.wait(other, "9")
	if g.version(lost) != "1" {
		t.Fatal("the change came by itself, so nothing is shown")
	}
	g.heal(lost, "2")
}

func TestAuditHealsWhatWasChangedByHand(t *testing.T) {
	g := newGateway(t)
	changed, lost := thing("changed"), thing("lost")
	g.publish(changed, "1")
	g.publish(lost, "1")
	g.wait(lost, "1")
	cursor := g.store.Cursor().Sequence
	forged := wire.Message{Node: edge, Key: changed, Op: wire.Apply, UID: "other", Version: "7", Sequence: cursor + 1, Object: body(changed, "other", "7")}
	gone := wire.Message{Node: edge, Key: lost, Op: wire.Delete, UID: "uid-lost", Sequence: cursor + 2}
	if err := g.store.Apply(t.Context(), []wire.Message{forged, gone}, cursor+2); err != nil {
		t.Fatal(err)
	}
	other := thing("other")
	for i := range 5 {
		g.publish(other, fmt.Sprint(i)) // else the cursor is beyond the stream, which an attach notices
	}
	g.wait(other, "4")
	g.heal(changed, "1")
	g.wait(lost, "1")
}

// What the node itself writes or deletes is no difference, and one that stays does not cost an attach each time.
func TestAuditKeepsQuietWhereNothingIsWrong(t *testing.T) {
	g := newGateway(t)
	told := 0
	g.audit.resync = func(string) error {
		told++
		return nil
	}
	own, gone := thing("own"), thing("gone")
	g.publish(own, "1")
	g.publish(gone, "1")
	g.wait(gone, "1")
	if _, err := g.store.Put(t.Context(), own, body(own, "uid-own", "1"), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := g.store.Delete(t.Context(), gone, "", nil); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		g.beat()
	}
	if told != 0 {
		t.Errorf("told %d times though nothing is wrong", told)
	}
	g.stop()
	g.publish(own, "2")
	for range 5 {
		g.beat()
	}
	if told != 0 {
		t.Errorf("told %d times though a change is on its way", told)
	}
	if err := g.store.Apply(t.Context(), nil, g.store.Cursor().Sequence+5); err != nil {
		t.Fatal(err)
	}
	for range 24 * 60 { // a day
		g.now = g.now.Add(50 * time.Second)
		g.beat()
	}
	if told < 2 || told > 20 {
		t.Errorf("a difference that stays for a day: told %d times", told)
	}
}
