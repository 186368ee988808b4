package nodehealth

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
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/deliver"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/publish"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

const edgeNode = "edge-1"

// startPart runs a part until the returned function is called, or the test ends.
func startPart(t *testing.T, part func(context.Context) error) (stop func()) {
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

// streamInventory computes the inventory of what the stream holds.
type streamInventory struct {
	t         *testing.T
	publisher *publish.Publisher
}

func (h streamInventory) Inventory(node string, except []wire.Key) (census wire.Inventory, upTo uint64, known bool) {
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

func (h streamInventory) Resync(...string) {}

// auditFixture is the node's side of the protocol over a real store, with the auditor of its inventory.
type auditFixture struct {
	*testing.T
	hub       *server.Server
	publisher *publish.Publisher
	store     *store.Store
	stop      func() // of the delivery
	auditor   *InventoryAuditor
	js        jetstream.JetStream
	now       time.Time
}

type linkAlwaysUp struct{ never chan struct{} }

func (l linkAlwaysUp) State() (bool, <-chan struct{}) { return true, l.never }

func newAuditFixture(t *testing.T) *auditFixture {
	t.Helper()
	g := &auditFixture{T: t, hub: streamstest.Hub(t), now: time.Now()}
	log := zaptest.NewLogger(t)
	nc := streamstest.Connect(t, g.hub)
	var err error
	if g.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	if g.publisher, err = publish.NewPublisher(nc, subject.Layout{}, metrics.New(nil)); err != nil {
		t.Fatal(err)
	}
	attacher, err := publish.NewAttacher(publish.AttacherConfig{NodeExists: func(context.Context, string) bool { return true }}, nc, subject.Layout{}, metrics.New(nil), log)
	if err != nil {
		t.Fatal(err)
	}
	calls, err := call.NewServer(nc, map[string]call.Handler{subject.VerbAttach: attacher.Handle}, metrics.New(nil), log)
	if err != nil {
		t.Fatal(err)
	}
	startPart(t, calls.Start)
	if g.store, err = store.Open(t.Context(), g.js, store.Config{}, log); err != nil {
		t.Fatal(err)
	}
	g.publishVersion(wire.SnapshotMarker(), "1")
	g.startDelivery()
	g.auditor = NewInventoryAuditor(func(string) bool { return true }, streamInventory{t, g.publisher},
		func(node string) error { return call.SendCommand(nc, node, call.VerbResync, nil) },
		func(string, string, string) {}, prometheus.NewRegistry(), log)
	return g
}

// startDelivery starts the node's delivery.
func (g *auditFixture) startDelivery() {
	g.Helper()
	nc := streamstest.Node(g.T, g.hub, edgeNode)
	delivery, err := deliver.NewDelivery(deliver.Config{Node: edgeNode}, nc, g.store, linkAlwaysUp{make(chan struct{})}, metrics.New(nil), zaptest.NewLogger(g.T))
	if err != nil {
		g.Fatal(err)
	}
	orders := call.NewCommandListener(edgeNode, nc, map[string]func([]byte){call.VerbResync: func([]byte) { delivery.Resync() }}, metrics.New(nil), zaptest.NewLogger(g.T))
	first, second := startPart(g.T, delivery.Start), startPart(g.T, orders.Start)
	g.stop = func() { first(); second() }
}

func configMapKey(name string) wire.Key {
	return wire.Key{Resource: "configmaps", Namespace: "default", Name: name}
}

func objectBody(key wire.Key, uid, version string) []byte {
	return fmt.Appendf(nil, `{"metadata":{"name":%q,"namespace":%q,"uid":%q,"resourceVersion":%q}}`, key.Name, key.Namespace, uid, version)
}

// publishVersion stores the next state of an object, version "" for none.
func (g *auditFixture) publishVersion(key wire.Key, version string) uint64 {
	g.Helper()
	all, err := g.publisher.Held(g.Context(), edgeNode)
	if err != nil {
		g.Fatal(err)
	}
	uid := "uid-" + key.Name
	m := wire.Message{Node: edgeNode, Key: key, Op: wire.Apply, UID: uid, Version: version, Time: time.Now(), Object: objectBody(key, uid, version)}
	if version == "" {
		m.Op, m.Object = wire.Delete, nil
	}
	sequence, err := g.publisher.Publish(g.Context(), m, all[key].Sequence)
	if err != nil {
		g.Fatal(err)
	}
	return sequence
}

// storedVersion returns the version of an object in the store.
func (g *auditFixture) storedVersion(key wire.Key) string {
	entry, err := g.store.Get(key)
	if err != nil {
		return ""
	}
	return entry.Version
}

func (g *auditFixture) waitVersion(key wire.Key, version string) {
	g.Helper()
	kit.Eventually(g.T, fmt.Sprintf("%s at version %q", key.Name, version), func() bool { return g.storedVersion(key) == version })
}

// sendHeartbeat sends a heartbeat with the node's present state to the auditor.
func (g *auditFixture) sendHeartbeat() {
	g.Helper()
	stream, err := g.js.Stream(g.Context(), subject.DesiredStream)
	if err != nil {
		g.Fatal(err)
	}
	cursor, census, deleted := g.store.Inventory()
	beat := wire.Heartbeat{Cursor: cursor, Inventory: &census}
	for _, key := range deleted {
		beat.Deleted = append(beat.Deleted, key.String())
	}
	g.now = g.now.Add(10 * time.Second)
	g.auditor.CompareInventory(edgeNode, beat, stream.CachedInfo().Created.UTC().Format("20060102T150405.000000000Z"), g.now)
}

// waitRepaired sends heartbeats until the node's object equals the cloud's.
func (g *auditFixture) waitRepaired(key wire.Key, version string) {
	g.Helper()
	kit.Eventually(g.T, fmt.Sprintf("%s at version %q after the audit", key.Name, version), func() bool {
		if g.storedVersion(key) == version {
			return true
		}
		g.sendHeartbeat()
		return false
	})
}

// The node runs a disk image older than a deletion whose tombstone it had acked: the stream no longer contains any
// message about the object.
func TestInventoryAuditor_RemovesObjectsOfOldDiskImage(t *testing.T) {
	g := newAuditFixture(t)
	gone, kept := configMapKey("gone"), configMapKey("kept")
	g.publishVersion(gone, "1")
	g.publishVersion(kept, "1")
	g.waitVersion(kept, "1")
	g.stop() // the image is made at this moment
	if err := g.publisher.Purge(t.Context(), edgeNode, gone, g.publishVersion(gone, "")); err != nil {
		t.Fatal(err)
	}
	g.startDelivery()
	g.publishVersion(kept, "2")
	g.waitVersion(kept, "2")
	if g.storedVersion(gone) != "1" {
		t.Fatal("the deletion came by itself, so nothing is shown")
	}
	g.waitRepaired(gone, "")
	g.waitVersion(kept, "2")
}

// A hub restored from a backup continues its sequences from there: a message published at a sequence that the node has
// passed is never delivered to it.
func TestInventoryAuditor_RepairsAfterHubRestore(t *testing.T) {
	g := newAuditFixture(t)
	lost := configMapKey("lost")
	g.publishVersion(lost, "1")
	g.waitVersion(lost, "1")
	g.stop()
	if err := g.store.Apply(t.Context(), nil, g.store.Cursor().Sequence+5); err != nil { // as before the restore
		t.Fatal(err)
	}
	g.publishVersion(lost, "2")
	other := configMapKey("other")
	for i := range 10 {
		g.publishVersion(other, fmt.Sprint(i)) // the restored stream grows past the cursor
	}
	g.startDelivery()
	g.waitVersion(other, "9")
	if g.storedVersion(lost) != "1" {
		t.Fatal("the change came by itself, so nothing is shown")
	}
	g.waitRepaired(lost, "2")
}

func TestInventoryAuditor_RepairsManualChanges(t *testing.T) {
	g := newAuditFixture(t)
	changed, lost := configMapKey("changed"), configMapKey("lost")
	g.publishVersion(changed, "1")
	g.publishVersion(lost, "1")
	g.waitVersion(lost, "1")
	cursor := g.store.Cursor().Sequence
	forged := wire.Message{Node: edgeNode, Key: changed, Op: wire.Apply, UID: "other", Version: "7", Sequence: cursor + 1, Object: objectBody(changed, "other", "7")}
	gone := wire.Message{Node: edgeNode, Key: lost, Op: wire.Delete, UID: "uid-lost", Sequence: cursor + 2}
	if err := g.store.Apply(t.Context(), []wire.Message{forged, gone}, cursor+2); err != nil {
		t.Fatal(err)
	}
	other := configMapKey("other")
	for i := range 5 {
		g.publishVersion(other, fmt.Sprint(i)) // otherwise the cursor is beyond the stream, which an attach detects
	}
	g.waitVersion(other, "4")
	g.waitRepaired(changed, "1")
	g.waitVersion(lost, "1")
}

// Changes by the node itself are no difference, and a lasting difference does not cost an attach each time.
func TestInventoryAuditor_IgnoresLocalAndInFlightChanges(t *testing.T) {
	g := newAuditFixture(t)
	told := 0
	g.auditor.resync = func(string) error {
		told++
		return nil
	}
	own, gone := configMapKey("own"), configMapKey("gone")
	g.publishVersion(own, "1")
	g.publishVersion(gone, "1")
	g.waitVersion(gone, "1")
	if _, err := g.store.Put(t.Context(), own, objectBody(own, "uid-own", "1"), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := g.store.Delete(t.Context(), gone, "", nil); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		g.sendHeartbeat()
	}
	if told != 0 {
		t.Errorf("told %d times though nothing is wrong", told)
	}
	g.stop()
	g.publishVersion(own, "2")
	for range 5 {
		g.sendHeartbeat()
	}
	if told != 0 {
		t.Errorf("told %d times though a change is on its way", told)
	}
	if err := g.store.Apply(t.Context(), nil, g.store.Cursor().Sequence+5); err != nil {
		t.Fatal(err)
	}
	for range 24 * 60 { // a day
		g.now = g.now.Add(50 * time.Second)
		g.sendHeartbeat()
	}
	if told < 2 || told > 20 {
		t.Errorf("a difference that stays for a day: told %d times", told)
	}
}
