package streams_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// memory is a streams.Store in memory.
type memory struct {
	mu        sync.Mutex
	cursor    wire.Cursor               // guarded by mu
	objects   map[wire.Key]wire.Message // guarded by mu
	applied   int                       // guarded by mu
	replaced  int                       // guarded by mu
	nextError error                     // guarded by mu; returned once
	onChange  func()                    // called with mu held after each change; may be nil
}

func newMemoryStore() *memory {
	return &memory{cursor: wire.Cursor{StoreEpoch: "s1"}, objects: map[wire.Key]wire.Message{}}
}

func (s *memory) Cursor() wire.Cursor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cursor
}

func (s *memory) Apply(_ context.Context, messages []wire.Message, sequence uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.nextError; err != nil {
		s.nextError = nil
		return err
	}
	for _, m := range messages {
		s.applyMessage(m)
	}
	s.cursor.Sequence = max(s.cursor.Sequence, sequence)
	s.notifyChange()
	return nil
}

func (s *memory) Replace(_ context.Context, messages []wire.Message, epoch string, sequence uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := maps.Clone(s.objects)
	clear(s.objects)
	for _, m := range messages {
		if m.Op == "" {
			if kept, ok := old[m.Key]; ok {
				s.objects[m.Key] = kept
			}
			continue
		}
		s.applyMessage(m)
	}
	s.replaced++
	s.cursor.StreamEpoch, s.cursor.Sequence = epoch, sequence
	s.notifyChange()
	return nil
}

// notifyChange calls onChange; mu is held.
func (s *memory) notifyChange() {
	if s.onChange != nil {
		s.onChange()
	}
}

// applyMessage applies one message; mu is held.
func (s *memory) applyMessage(m wire.Message) {
	s.applied++
	if m.Op == wire.Delete {
		delete(s.objects, m.Key)
		return
	}
	s.objects[m.Key] = m
}

func (s *memory) objectOf(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.objects[configMapKey(name)].Object)
}

func (s *memory) objectCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.objects)
}

// switchableLink is a streams.Link that a test turns on and off.
type switchableLink struct {
	mu      sync.Mutex
	up      bool          // guarded by mu
	changed chan struct{} // guarded by mu
}

func newSwitchableLink() *switchableLink {
	return &switchableLink{up: true, changed: make(chan struct{})}
}

func (l *switchableLink) State() (bool, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up, l.changed
}

func (l *switchableLink) setUp(up bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.up = up
	close(l.changed)
	l.changed = make(chan struct{})
}

func configMapKey(name string) wire.Key {
	return wire.Key{Resource: "configmaps", Namespace: "default", Name: name}
}

func desiredMessage(name, version string) wire.Message {
	return wire.Message{
		Node: "edge.1", Key: configMapKey(name), Op: wire.Apply, UID: "uid-" + name, Version: version, Time: time.Now(),
		Object: fmt.Appendf(nil, `{"v":%q}`, version),
	}
}

func tombstoneMessage(name string) wire.Message {
	return wire.Message{Node: "edge.1", Key: configMapKey(name), Op: wire.Delete, UID: "uid-" + name, Version: "x", Time: time.Now()}
}

// cloudSide is the cloud's end of a delivery.
type cloudSide struct {
	publisher *streams.Publisher
	metrics   *prometheus.Registry
}

func startCloud(t *testing.T, hub *server.Server, known bool) cloudSide {
	t.Helper()
	return startCloudOver(t, streamstest.Connect(t, hub), known)
}

func startCloudOver(t *testing.T, nc *nats.Conn, known bool) cloudSide {
	t.Helper()
	reg := prometheus.NewRegistry()
	metrics := streams.NewMetrics(reg)
	log := zaptest.NewLogger(t)
	publisher, err := streams.NewPublisher(nc, metrics)
	if err != nil {
		t.Fatal(err)
	}
	attacher, err := streams.NewAttacher(nc, func(context.Context, string) bool { return known }, func(string, string) {}, metrics, log)
	if err != nil {
		t.Fatal(err)
	}
	pieces, err := streams.NewChunkServer(nc, log)
	if err != nil {
		t.Fatal(err)
	}
	calls, err := streams.NewCallServer(nc, map[string]streams.CallHandler{streams.VerbAttach: attacher.Handle, streams.VerbPiece: pieces.Handle}, metrics, log)
	if err != nil {
		t.Fatal(err)
	}
	startPart(t, calls.Start)
	return cloudSide{publisher: publisher, metrics: reg}
}

func (c cloudSide) publishNext(t *testing.T, m wire.Message) uint64 {
	t.Helper()
	held, err := c.publisher.Held(t.Context(), m.Node)
	if err != nil {
		t.Fatal(err)
	}
	sequence, err := c.publisher.Publish(t.Context(), m, held[m.Key].Sequence)
	if err != nil {
		t.Fatal(err)
	}
	return sequence
}

func startNode(t *testing.T, hub *server.Server, store streams.Store, link streams.Link) *prometheus.Registry {
	t.Helper()
	nc := streamstest.Node(t, hub, "edge.1")
	reg := prometheus.NewRegistry()
	delivery, err := streams.NewDelivery("edge.1", nc, store, link, streams.NewMetrics(reg), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	startPart(t, delivery.Start)
	return reg
}

// startPart starts a part and stops it before the connections close.
func startPart(t *testing.T, start func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return start(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Errorf("Start: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func TestDelivery_ListsThenWatches(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	cloud.publishNext(t, desiredMessage("a", "1"))
	cloud.publishNext(t, desiredMessage("b", "1"))
	cloud.publishNext(t, desiredMessage("b", "2"))
	store := newMemoryStore()
	startNode(t, hub, store, newSwitchableLink())
	streamstest.Eventually(t, "snapshot", func() bool { return store.objectOf("a") == `{"v":"1"}` && store.objectOf("b") == `{"v":"2"}` })
	cloud.publishNext(t, desiredMessage("a", "2"))
	last := cloud.publishNext(t, tombstoneMessage("b"))
	streamstest.Eventually(t, "changes", func() bool {
		return store.objectOf("a") == `{"v":"2"}` && store.objectCount() == 1 && store.Cursor().Sequence == last
	})
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	streamstest.Eventually(t, "acks visible in consumer info", func() bool {
		consumer, err := js.Consumer(t.Context(), streams.DesiredStream, "edge_1")
		return err == nil && consumer.CachedInfo().AckFloor.Stream == last && consumer.CachedInfo().NumAckPending == 0
	})
}

func TestDelivery_ResumesFromItsCursor(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	for i := range 20 {
		cloud.publishNext(t, desiredMessage(fmt.Sprint("o", i), "1"))
	}
	store, link := newMemoryStore(), newSwitchableLink()
	startNode(t, hub, store, link)
	streamstest.Eventually(t, "first snapshot", func() bool { return store.objectCount() == 20 })
	link.setUp(false)
	for v := range 10 {
		cloud.publishNext(t, desiredMessage("o3", fmt.Sprint(v+2)))
	}
	cloud.publishNext(t, tombstoneMessage("o4"))
	store.mu.Lock()
	store.applied = 0
	store.mu.Unlock()
	link.setUp(true)
	streamstest.Eventually(t, "last state", func() bool { return store.objectOf("o3") == `{"v":"11"}` && store.objectCount() == 19 })
	store.mu.Lock()
	defer store.mu.Unlock()
	if store.applied != 2 || store.replaced != 1 {
		t.Errorf("after the cut %d messages were applied and %d snapshots taken, want 2 and 1", store.applied, store.replaced)
	}
}

// The server reports that some bytes of a pull were not used after all its messages were delivered; by then the next pull is open.
func TestDelivery_BurstOfSmallMessagesNeedsNoAttach(t *testing.T) {
	const burst = 1500 // more than a few pulls hold
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	store := newMemoryStore()
	cloud.publishNext(t, desiredMessage("first", "1"))
	startNode(t, hub, store, newSwitchableLink())
	streamstest.Eventually(t, "attached", func() bool { return store.objectCount() == 1 })
	for round := range 3 { // the bandwidth estimate grows with each round
		store.mu.Lock() // all of them wait, so that pulls are full
		var sequence uint64
		for i := range burst {
			m := desiredMessage(fmt.Sprint("o", round, "-", i), "1")
			var err error
			if sequence, err = cloud.publisher.Publish(t.Context(), m, 0); err != nil {
				t.Error(err)
			}
		}
		store.mu.Unlock()
		streamstest.Eventually(t, "the burst", func() bool { return store.Cursor().Sequence == sequence })
	}
	store.mu.Lock()
	defer store.mu.Unlock()
	if again := sumCounters(t, cloud.metrics, "frond_attaches_total", "changes"); again != 0 || store.applied != 1+3*burst {
		t.Errorf("attached %v times again for %d messages, want 0 and %d", again, store.applied, 1+3*burst)
	}
}

func TestDelivery_SurvivesDeletedConsumer(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	store := newMemoryStore()
	startNode(t, hub, store, newSwitchableLink())
	cloud.publishNext(t, desiredMessage("a", "1"))
	streamstest.Eventually(t, "first", func() bool { return store.objectOf("a") == `{"v":"1"}` })
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteConsumer(t.Context(), streams.DesiredStream, "edge_1"); err != nil {
		t.Fatal(err)
	}
	cloud.publishNext(t, desiredMessage("a", "2"))
	streamstest.Eventually(t, "delivery after the consumer was deleted by hand", func() bool { return store.objectOf("a") == `{"v":"2"}` })
}

func TestDelivery_RetriesAfterDiskError(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	store := newMemoryStore()
	startNode(t, hub, store, newSwitchableLink())
	cloud.publishNext(t, desiredMessage("a", "1"))
	streamstest.Eventually(t, "first", func() bool { return store.objectOf("a") == `{"v":"1"}` })
	store.mu.Lock()
	store.nextError = errors.New("disk full")
	store.mu.Unlock()
	cloud.publishNext(t, desiredMessage("a", "2"))
	streamstest.Eventually(t, "second", func() bool { return store.objectOf("a") == `{"v":"2"}` })
}

func TestAttacher_RefusesSnapshotUntilMarker(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, true)
	store := newMemoryStore()
	store.objects[configMapKey("precious")] = desiredMessage("precious", "1")
	store.cursor.StreamEpoch, store.cursor.Sequence = "another life", 7
	startNode(t, hub, store, newSwitchableLink())
	cloud.publishNext(t, desiredMessage("a", "1"))
	streamstest.Eventually(t, "a refused attach", func() bool {
		n, err := testutil.GatherAndCount(cloud.metrics, "frond_attaches_total")
		return err == nil && n == 1
	})
	marker := tombstoneMessage("a")
	marker.Key = wire.SnapshotMarker()
	cloud.publishNext(t, marker) // of a node that was deleted and comes back
	attempts := countAttachErrors(t, cloud.metrics)
	streamstest.Eventually(t, "an attach refused in spite of the marker's tombstone", func() bool { return countAttachErrors(t, cloud.metrics) > attempts+1 })
	if store.objectCount() != 1 {
		t.Fatal("the store changed before the stream was complete")
	}
	marker = desiredMessage("a", "1")
	marker.Key = wire.SnapshotMarker()
	cloud.publishNext(t, marker)
	streamstest.Eventually(t, "the full snapshot", func() bool { return store.objectOf("a") == `{"v":"1"}` && store.objectOf("precious") == "" })
}

func TestDelivery_MalformedIsDeadLettered(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	store := newMemoryStore()
	metrics := startNode(t, hub, store, newSwitchableLink())
	cloud.publishNext(t, desiredMessage("a", "1"))
	streamstest.Eventually(t, "first", func() bool { return store.objectCount() == 1 })
	nc := streamstest.Connect(t, hub)
	good := nats.Header{"Frond-Version": {"1"}, "Frond-Op": {"apply"}, "Frond-Time": {time.Now().Format(time.RFC3339Nano)}}
	with := func(name, value string) nats.Header {
		h := maps.Clone(good)
		h[name] = []string{value}
		return h
	}
	garbage := []*nats.Msg{
		{Subject: "desired.edge_1.core.configmaps.default.g1", Data: []byte("not JSON"), Header: good},
		{Subject: "desired.edge_1.core.configmaps.default.g2", Data: []byte("null"), Header: good},
		{Subject: "desired.edge_1.core.configmaps.default.g3", Data: []byte(`{}`), Header: with("Frond-Version", "99")},
		{Subject: "desired.edge_1.core.configmaps.default.g4", Data: []byte(`{}`), Header: with("Frond-Op", "explode")},
		{Subject: "desired.edge_1.core.configmaps.default.g5", Data: []byte(`{}`)},
		{Subject: "desired.edge_1.too.short", Data: []byte(`{}`), Header: good},
		{Subject: "desired.edge_1.core.configmaps.default.g6", Data: []byte(`{"a":1`), Header: good},
		{Subject: "desired.edge_1.core.configmaps.default.g7", Data: []byte(`{}`), Header: with("Content-Encoding", "zstd")},
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for _, msg := range garbage {
		if _, err := js.PublishMsg(t.Context(), msg); err != nil { // stored when it returns: the good message comes behind it
			t.Fatal(err)
		}
	}
	cloud.publishNext(t, desiredMessage("b", "1"))
	streamstest.Eventually(t, "the good message after the garbage", func() bool { return store.objectOf("b") == `{"v":"1"}` })
	if got := countDeadLetters(t, metrics, "desired"); got != float64(len(garbage)) {
		t.Errorf("%v dead letters counted, want %d", got, len(garbage))
	}
	stream, err := js.Stream(t.Context(), streams.DeadLetterStream)
	if err != nil {
		t.Fatal(err)
	}
	if got := stream.CachedInfo().State.Msgs; got != uint64(len(garbage)) {
		t.Errorf("%d dead letters kept, want %d", got, len(garbage))
	}
	if err := nc.Publish("desired.edge_1.core.configmaps.default.big", make([]byte, 10<<20)); !errors.Is(err, nats.ErrMaxPayload) {
		t.Errorf("a message of 10 MiB: %v, want %v", err, nats.ErrMaxPayload)
	}
}

func countDeadLetters(t *testing.T, reg *prometheus.Registry, plane string) float64 {
	t.Helper()
	return sumCounters(t, reg, "frond_dead_letters_total", plane)
}

func countAttachErrors(t *testing.T, reg *prometheus.Registry) float64 {
	t.Helper()
	return sumCounters(t, reg, "frond_attaches_total", "error")
}
