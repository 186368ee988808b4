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
	"github.com/frond-edge/frond/streams/streamstest"
)

// memory is a streams.Store in memory.
type memory struct {
	mu       sync.Mutex
	cursor   wire.Cursor               // guarded by mu
	objects  map[wire.Key]wire.Message // guarded by mu
	applied  int                       // guarded by mu
	replaced int                       // guarded by mu
	fail     error                     // guarded by mu; returned once
	watch    func()                    // called with mu held after each change; nil: nobody looks
}

func newMemory() *memory {
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
	if err := s.fail; err != nil {
		s.fail = nil
		return err
	}
	for _, m := range messages {
		s.set(m)
	}
	s.cursor.Sequence = max(s.cursor.Sequence, sequence)
	s.changed()
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
		s.set(m)
	}
	s.replaced++
	s.cursor.StreamEpoch, s.cursor.Sequence = epoch, sequence
	s.changed()
	return nil
}

// changed lets the test look; mu is held.
func (s *memory) changed() {
	if s.watch != nil {
		s.watch()
	}
}

// set applies one message; mu is held.
func (s *memory) set(m wire.Message) {
	s.applied++
	if m.Op == wire.Delete {
		delete(s.objects, m.Key)
		return
	}
	s.objects[m.Key] = m
}

func (s *memory) get(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.objects[key(name)].Object)
}

func (s *memory) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.objects)
}

// switchable is a streams.Link that a test turns on and off.
type switchable struct {
	mu      sync.Mutex
	up      bool          // guarded by mu
	changed chan struct{} // guarded by mu
}

func newLink() *switchable { return &switchable{up: true, changed: make(chan struct{})} }

func (l *switchable) State() (bool, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up, l.changed
}

func (l *switchable) set(up bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.up = up
	close(l.changed)
	l.changed = make(chan struct{})
}

func key(name string) wire.Key {
	return wire.Key{Resource: "configmaps", Namespace: "default", Name: name}
}

func apply(name, version string) wire.Message {
	return wire.Message{
		Node: "edge.1", Key: key(name), Op: wire.Apply, UID: "uid-" + name, Version: version, Time: time.Now(),
		Object: fmt.Appendf(nil, `{"v":%q}`, version),
	}
}

func tombstone(name string) wire.Message {
	return wire.Message{Node: "edge.1", Key: key(name), Op: wire.Delete, UID: "uid-" + name, Version: "x", Time: time.Now()}
}

// cloud is the cloud's half of the wire.
type cloud struct {
	publisher *streams.Publisher
	metrics   *prometheus.Registry
}

func startCloud(t *testing.T, hub *server.Server, known bool) cloud {
	t.Helper()
	return startCloudOver(t, streamstest.Connect(t, hub), known)
}

func startCloudOver(t *testing.T, nc *nats.Conn, known bool) cloud {
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
	pieces, err := streams.NewPieces(nc, log)
	if err != nil {
		t.Fatal(err)
	}
	calls, err := streams.NewCalls(nc, map[string]streams.CallHandler{streams.VerbAttach: attacher.Handle, streams.VerbPiece: pieces.Handle}, metrics, log)
	if err != nil {
		t.Fatal(err)
	}
	run(t, calls.Start)
	return cloud{publisher: publisher, metrics: reg}
}

func (c cloud) publish(t *testing.T, m wire.Message) uint64 {
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
	run(t, delivery.Start)
	return reg
}

// run starts a part and stops it before the connections close.
func run(t *testing.T, start func(context.Context) error) (stop func()) {
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

func TestDeliveryListsThenWatches(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	cloud.publish(t, apply("a", "1"))
	cloud.publish(t, apply("b", "1"))
	cloud.publish(t, apply("b", "2"))
	store := newMemory()
	startNode(t, hub, store, newLink())
	streamstest.Eventually(t, "snapshot", func() bool { return store.get("a") == `{"v":"1"}` && store.get("b") == `{"v":"2"}` })
	cloud.publish(t, apply("a", "2"))
	last := cloud.publish(t, tombstone("b"))
	streamstest.Eventually(t, "changes", func() bool {
		return store.get("a") == `{"v":"2"}` && store.size() == 1 && store.Cursor().Sequence == last
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

func TestDeliveryResumesFromItsCursor(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	for i := range 20 {
		cloud.publish(t, apply(fmt.Sprint("o", i), "1"))
	}
	store, link := newMemory(), newLink()
	startNode(t, hub, store, link)
	streamstest.Eventually(t, "first snapshot", func() bool { return store.size() == 20 })
	link.set(false)
	for v := range 10 {
		cloud.publish(t, apply("o3", fmt.Sprint(v+2)))
	}
	cloud.publish(t, tombstone("o4"))
	store.mu.Lock()
	store.applied = 0
	store.mu.Unlock()
	link.set(true)
	streamstest.Eventually(t, "last state", func() bool { return store.get("o3") == `{"v":"11"}` && store.size() == 19 })
	store.mu.Lock()
	defer store.mu.Unlock()
	if store.applied != 2 || store.replaced != 1 {
		t.Errorf("after the cut %d messages were applied and %d snapshots taken, want 2 and 1", store.applied, store.replaced)
	}
}

// The server says of a pull whose messages have come that some of its bytes have not; by then the next pull is open.
func TestABurstOfSmallMessagesNeedsNoAttach(t *testing.T) {
	const burst = 1500 // more than a few pulls hold
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	store := newMemory()
	cloud.publish(t, apply("first", "1"))
	startNode(t, hub, store, newLink())
	streamstest.Eventually(t, "attached", func() bool { return store.size() == 1 })
	for round := range 3 { // the link is believed to carry more with each
		store.mu.Lock() // all of them wait, so that pulls are full
		var sequence uint64
		for i := range burst {
			m := apply(fmt.Sprint("o", round, "-", i), "1")
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
	if again := counted(t, cloud.metrics, "frond_attaches_total", "changes"); again != 0 || store.applied != 1+3*burst {
		t.Errorf("attached %v times again for %d messages, want 0 and %d", again, store.applied, 1+3*burst)
	}
}

func TestDeliverySurvivesItsConsumer(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	store := newMemory()
	startNode(t, hub, store, newLink())
	cloud.publish(t, apply("a", "1"))
	streamstest.Eventually(t, "first", func() bool { return store.get("a") == `{"v":"1"}` })
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteConsumer(t.Context(), streams.DesiredStream, "edge_1"); err != nil {
		t.Fatal(err)
	}
	cloud.publish(t, apply("a", "2"))
	streamstest.Eventually(t, "delivery after the consumer was deleted by hand", func() bool { return store.get("a") == `{"v":"2"}` })
}

func TestDeliveryTriesAgainWhenTheDiskFails(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	store := newMemory()
	startNode(t, hub, store, newLink())
	cloud.publish(t, apply("a", "1"))
	streamstest.Eventually(t, "first", func() bool { return store.get("a") == `{"v":"1"}` })
	store.mu.Lock()
	store.fail = errors.New("disk full")
	store.mu.Unlock()
	cloud.publish(t, apply("a", "2"))
	streamstest.Eventually(t, "second", func() bool { return store.get("a") == `{"v":"2"}` })
}

func TestAttachWaitsForACompleteStream(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, true)
	store := newMemory()
	store.objects[key("precious")] = apply("precious", "1")
	store.cursor.StreamEpoch, store.cursor.Sequence = "another life", 7
	startNode(t, hub, store, newLink())
	cloud.publish(t, apply("a", "1"))
	streamstest.Eventually(t, "a refused attach", func() bool {
		n, err := testutil.GatherAndCount(cloud.metrics, "frond_attaches_total")
		return err == nil && n == 1
	})
	marker := tombstone("a")
	marker.Key = wire.SnapshotMarker()
	cloud.publish(t, marker) // of a node that was taken away and comes back
	attempts := attachErrors(t, cloud.metrics)
	streamstest.Eventually(t, "an attach refused in spite of the marker's tombstone", func() bool { return attachErrors(t, cloud.metrics) > attempts+1 })
	if store.size() != 1 {
		t.Fatal("the store changed before the stream was complete")
	}
	marker = apply("a", "1")
	marker.Key = wire.SnapshotMarker()
	cloud.publish(t, marker)
	streamstest.Eventually(t, "the full snapshot", func() bool { return store.get("a") == `{"v":"1"}` && store.get("precious") == "" })
}

func TestGarbageIsDeadLetteredAndTheNextMessageArrives(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	store := newMemory()
	metrics := startNode(t, hub, store, newLink())
	cloud.publish(t, apply("a", "1"))
	streamstest.Eventually(t, "first", func() bool { return store.size() == 1 })
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
	cloud.publish(t, apply("b", "1"))
	streamstest.Eventually(t, "the good message after the garbage", func() bool { return store.get("b") == `{"v":"1"}` })
	if got := deadCount(t, metrics, "desired"); got != float64(len(garbage)) {
		t.Errorf("%v dead letters counted, want %d", got, len(garbage))
	}
	stream, err := js.Stream(t.Context(), streams.DeadStream)
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

func deadCount(t *testing.T, reg *prometheus.Registry, plane string) float64 {
	t.Helper()
	return counted(t, reg, "frond_dead_letters_total", plane)
}

func attachErrors(t *testing.T, reg *prometheus.Registry) float64 {
	t.Helper()
	return counted(t, reg, "frond_attaches_total", "error")
}
