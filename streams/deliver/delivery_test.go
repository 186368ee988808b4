package deliver_test

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/deliver"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

func TestDelivery_ListsThenWatches(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := streamstest.StartCloud(t, hub, false)
	cloud.PublishNext(t, streamstest.DesiredMessage("a", "1"))
	cloud.PublishNext(t, streamstest.DesiredMessage("b", "1"))
	cloud.PublishNext(t, streamstest.DesiredMessage("b", "2"))
	store := streamstest.NewMemoryStore()
	streamstest.StartNode(t, hub, store, streamstest.NewSwitchableLink())
	kit.Eventually(t, "snapshot", func() bool { return store.ObjectOf("a") == `{"v":"1"}` && store.ObjectOf("b") == `{"v":"2"}` })
	cloud.PublishNext(t, streamstest.DesiredMessage("a", "2"))
	last := cloud.PublishNext(t, streamstest.TombstoneMessage("b"))
	kit.Eventually(t, "changes", func() bool {
		return store.ObjectOf("a") == `{"v":"2"}` && store.ObjectCount() == 1 && store.Cursor().Sequence == last
	})
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, "acks visible in consumer info", func() bool {
		consumer, err := js.Consumer(t.Context(), subject.DesiredStream, "edge_1")
		return err == nil && consumer.CachedInfo().AckFloor.Stream == last && consumer.CachedInfo().NumAckPending == 0
	})
}

// A node learns from its attach how long it may pause between two dials, also when it attaches again with nothing new.
func TestDelivery_ReportsRedialMaxOfEachAttach(t *testing.T) {
	hub := streamstest.Hub(t)
	streamstest.StartCloud(t, hub, false)
	told := make(chan time.Duration, 2) // one for each attach
	cfg := deliver.Config{Node: "edge.1", OnRedialMax: func(longest time.Duration) { told <- longest }}
	link := streamstest.NewSwitchableLink()
	delivery, err := deliver.NewDelivery(cfg, streamstest.Node(t, hub, "edge.1"), streamstest.NewMemoryStore(), link, metrics.New(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	streamstest.StartPart(t, delivery.Start)
	for range cap(told) {
		select {
		case longest := <-told:
			if longest != streamstest.RedialMax {
				t.Errorf("told %v, want %v", longest, streamstest.RedialMax)
			}
		case <-time.After(time.Minute):
			t.Fatal("the node was not told")
		}
		link.SetUp(false)
		link.SetUp(true)
	}
}

func TestDelivery_ResumesFromItsCursor(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := streamstest.StartCloud(t, hub, false)
	for i := range 20 {
		cloud.PublishNext(t, streamstest.DesiredMessage(fmt.Sprint("o", i), "1"))
	}
	store, link := streamstest.NewMemoryStore(), streamstest.NewSwitchableLink()
	streamstest.StartNode(t, hub, store, link)
	kit.Eventually(t, "first snapshot", func() bool { return store.ObjectCount() == 20 })
	link.SetUp(false)
	for v := range 10 {
		cloud.PublishNext(t, streamstest.DesiredMessage("o3", fmt.Sprint(v+2)))
	}
	cloud.PublishNext(t, streamstest.TombstoneMessage("o4"))
	store.Mu.Lock()
	store.Applied = 0
	store.Mu.Unlock()
	link.SetUp(true)
	kit.Eventually(t, "last state", func() bool { return store.ObjectOf("o3") == `{"v":"11"}` && store.ObjectCount() == 19 })
	store.Mu.Lock()
	defer store.Mu.Unlock()
	if store.Applied != 2 || store.Replaced != 1 {
		t.Errorf("after the cut %d messages were applied and %d snapshots taken, want 2 and 1", store.Applied, store.Replaced)
	}
}

// The server reports that some bytes of a pull were not used after all its messages were delivered; by then the next pull is open.
func TestDelivery_BurstOfSmallMessagesNeedsNoAttach(t *testing.T) {
	const burst = 1500 // more than a few pulls hold
	hub := streamstest.Hub(t)
	cloud := streamstest.StartCloud(t, hub, false)
	store := streamstest.NewMemoryStore()
	cloud.PublishNext(t, streamstest.DesiredMessage("first", "1"))
	streamstest.StartNode(t, hub, store, streamstest.NewSwitchableLink())
	kit.Eventually(t, "attached", func() bool { return store.ObjectCount() == 1 })
	for round := range 3 { // the bandwidth estimate grows with each round
		store.Mu.Lock() // all of them wait, so that pulls are full
		var sequence uint64
		for i := range burst {
			m := streamstest.DesiredMessage(fmt.Sprint("o", round, "-", i), "1")
			var err error
			if sequence, err = cloud.Publisher.Publish(t.Context(), m, 0); err != nil {
				t.Error(err)
			}
		}
		store.Mu.Unlock()
		kit.Eventually(t, "the burst", func() bool { return store.Cursor().Sequence == sequence })
	}
	store.Mu.Lock()
	defer store.Mu.Unlock()
	if again := streamstest.SumCounters(t, cloud.Metrics, "frond_attaches_total", "changes"); again != 0 || store.Applied != 1+3*burst {
		t.Errorf("attached %v times again for %d messages, want 0 and %d", again, store.Applied, 1+3*burst)
	}
}

func TestDelivery_SurvivesDeletedConsumer(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := streamstest.StartCloud(t, hub, false)
	store := streamstest.NewMemoryStore()
	streamstest.StartNode(t, hub, store, streamstest.NewSwitchableLink())
	cloud.PublishNext(t, streamstest.DesiredMessage("a", "1"))
	kit.Eventually(t, "first", func() bool { return store.ObjectOf("a") == `{"v":"1"}` })
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteConsumer(t.Context(), subject.DesiredStream, "edge_1"); err != nil {
		t.Fatal(err)
	}
	cloud.PublishNext(t, streamstest.DesiredMessage("a", "2"))
	kit.Eventually(t, "delivery after the consumer was deleted by hand", func() bool { return store.ObjectOf("a") == `{"v":"2"}` })
}

func TestDelivery_RetriesAfterDiskError(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := streamstest.StartCloud(t, hub, false)
	store := streamstest.NewMemoryStore()
	streamstest.StartNode(t, hub, store, streamstest.NewSwitchableLink())
	cloud.PublishNext(t, streamstest.DesiredMessage("a", "1"))
	kit.Eventually(t, "first", func() bool { return store.ObjectOf("a") == `{"v":"1"}` })
	store.Mu.Lock()
	store.NextError = errors.New("disk full")
	store.Mu.Unlock()
	cloud.PublishNext(t, streamstest.DesiredMessage("a", "2"))
	kit.Eventually(t, "second", func() bool { return store.ObjectOf("a") == `{"v":"2"}` })
}

func TestAttacher_RefusesSnapshotUntilMarker(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := streamstest.StartCloud(t, hub, true)
	store := streamstest.NewMemoryStore()
	store.Objects[streamstest.ConfigMapKey("precious")] = streamstest.DesiredMessage("precious", "1")
	store.At.StreamEpoch, store.At.Sequence = "another life", 7
	streamstest.StartNode(t, hub, store, streamstest.NewSwitchableLink())
	cloud.PublishNext(t, streamstest.DesiredMessage("a", "1"))
	kit.Eventually(t, "a refused attach", func() bool {
		n, err := testutil.GatherAndCount(cloud.Metrics, "frond_attaches_total")
		return err == nil && n == 1
	})
	marker := streamstest.TombstoneMessage("a")
	marker.Key = wire.SnapshotMarker()
	cloud.PublishNext(t, marker) // of a node that was deleted and comes back
	attempts := countAttachErrors(t, cloud.Metrics)
	kit.Eventually(t, "an attach refused in spite of the marker's tombstone", func() bool { return countAttachErrors(t, cloud.Metrics) > attempts+1 })
	if store.ObjectCount() != 1 {
		t.Fatal("the store changed before the stream was complete")
	}
	marker = streamstest.DesiredMessage("a", "1")
	marker.Key = wire.SnapshotMarker()
	cloud.PublishNext(t, marker)
	kit.Eventually(t, "the full snapshot", func() bool { return store.ObjectOf("a") == `{"v":"1"}` && store.ObjectOf("precious") == "" })
}

func TestDelivery_MalformedIsDeadLettered(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := streamstest.StartCloud(t, hub, false)
	store := streamstest.NewMemoryStore()
	metrics := streamstest.StartNode(t, hub, store, streamstest.NewSwitchableLink())
	cloud.PublishNext(t, streamstest.DesiredMessage("a", "1"))
	kit.Eventually(t, "first", func() bool { return store.ObjectCount() == 1 })
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
	cloud.PublishNext(t, streamstest.DesiredMessage("b", "1"))
	kit.Eventually(t, "the good message after the garbage", func() bool { return store.ObjectOf("b") == `{"v":"1"}` })
	if got := streamstest.CountDeadLetters(t, metrics, "desired"); got != float64(len(garbage)) {
		t.Errorf("%v dead letters counted, want %d", got, len(garbage))
	}
	stream, err := js.Stream(t.Context(), subject.DeadLetterStream)
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

func countAttachErrors(t *testing.T, reg *prometheus.Registry) float64 {
	t.Helper()
	return streamstest.SumCounters(t, reg, "frond_attaches_total", "error")
}
