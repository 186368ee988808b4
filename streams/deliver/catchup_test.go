package deliver_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/deliver"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// A gateway is away for 60 days. The test needs no clock, because the only effect of that time on the hub is that the node's consumer
// expires. After 10,000 changes the gateway gets each object's last state once, deleted objects are removed and stay away, and unchanged
// objects cost nothing.
func TestDelivery_CatchUpSendsOnlyChangedObjects(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := streamstest.StartCloud(t, hub, false)
	w := &desiredWriter{t: t, cloud: cloud, last: map[string]uint64{}}
	const objects = 300
	for i := range objects {
		w.publish(streamstest.DesiredMessage(fmt.Sprint("o", i), "1"))
	}
	nc := streamstest.Node(t, hub, "edge.1")
	store, link := streamstest.NewMemoryStore(), streamstest.NewSwitchableLink()
	delivery, err := deliver.NewDelivery(deliver.Config{Node: "edge.1"}, nc, store, link, metrics.New(prometheus.NewRegistry()), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	streamstest.StartPart(t, delivery.Start)
	kit.Eventually(t, "first snapshot", func() bool { return store.ObjectCount() == objects })
	whole := nc.Stats().InBytes
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	deleted := 0
	for _, tt := range []struct{ changed, changes, deletions int }{{10, 5000, 5}, {200, 5000, 20}} {
		link.SetUp(false)
		expireNodeConsumer(t, js)
		for i := range tt.changes {
			w.publish(streamstest.DesiredMessage(fmt.Sprint("o", i%tt.changed), fmt.Sprint("v", i)))
		}
		for i := range tt.deletions {
			w.publish(streamstest.TombstoneMessage(fmt.Sprint("o", objects-1-deleted-i)))
		}
		deleted += tt.deletions
		again := streamstest.DesiredMessage("o0", "new") // deleted, and created again under its name
		again.UID = "uid-new"
		w.publish(streamstest.TombstoneMessage("o0"))
		last := w.publish(again)
		before := nc.Stats().InBytes
		store.Mu.Lock()
		store.Applied = 0
		store.Mu.Unlock()
		link.SetUp(true)
		kit.Eventually(t, "caught up", func() bool { return store.Cursor().Sequence == last })
		bytes := nc.Stats().InBytes - before
		store.Mu.Lock()
		if store.Applied != tt.changed+tt.deletions || store.Replaced != 1 {
			t.Errorf("%d objects changed and %d were deleted; %d messages were applied and %d snapshots taken, want one each and the first",
				tt.changed, tt.deletions, store.Applied, store.Replaced)
		}
		for key, m := range store.Objects {
			if m.Sequence != w.last[key.Name] {
				t.Errorf("%s is of sequence %d, want %d", key.Name, m.Sequence, w.last[key.Name])
			}
		}
		store.Mu.Unlock()
		if store.ObjectCount() != objects-deleted || store.ObjectOf(fmt.Sprint("o", objects-1)) != "" {
			t.Errorf("the store has %d objects, want %d", store.ObjectCount(), objects-deleted)
		}
		t.Logf("%d changes of %d objects, %d deletions: %d bytes; all %d objects: %d bytes", tt.changes, tt.changed, tt.deletions, bytes, objects, whole)
		if most := whole * uint64(2*(tt.changed+tt.deletions)) / objects; bytes > most+whole/10 { //nolint:gosec // small numbers
			t.Errorf("%d bytes came for %d changed objects of %d, whose first snapshot took %d", bytes, tt.changed+tt.deletions, objects, whole)
		}
	}
}

// expireNodeConsumer deletes the node's consumer, as the server does after the gateway was away for an hour.
func expireNodeConsumer(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	if err := js.DeleteConsumer(t.Context(), subject.DesiredStream, "edge_1"); err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), subject.DesiredStream)
	if err != nil {
		t.Fatal(err)
	}
	if c := s.CachedInfo().Config; c.MaxAge != 0 || c.Retention != jetstream.LimitsPolicy || c.MaxMsgs > 0 || c.MaxBytes > 0 {
		t.Errorf("time or size takes what a gateway has not got: %+v", c)
	}
}

// desiredWriter publishes like one cloudcore that remembers its last publish of each object.
type desiredWriter struct {
	t     *testing.T
	cloud streamstest.CloudSide
	last  map[string]uint64
}

func (w *desiredWriter) publish(m wire.Message) uint64 {
	w.t.Helper()
	m.Object = []byte(strings.Replace(string(m.Object), "{", `{"padding":"`+strings.Repeat("x", 800)+`",`, 1))
	m.Time = time.Now()
	sequence, err := w.cloud.Publisher.Publish(w.t.Context(), m, w.last[m.Key.Name])
	if err != nil {
		w.t.Fatal(err)
	}
	w.last[m.Key.Name] = sequence
	return sequence
}
