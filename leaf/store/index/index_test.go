package index_test

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store/index"
	"github.com/frond-edge/frond/leaf/store/record"
	"github.com/frond-edge/frond/test/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newIndex(window int) *index.Index {
	return index.New(index.Config{
		Window: window, WindowBytes: 1 << 20,
		Objects: prometheus.NewGauge(prometheus.GaugeOpts{}), Bytes: prometheus.NewGauge(prometheus.GaugeOpts{}),
	})
}

// newChange returns a change of the pod a at a revision, which is also the hub's sequence.
func newChange(state record.State, revision uint64) record.Change {
	return record.Change{Revision: revision, Record: &record.Record{
		Entry: record.Entry{Key: wire.Key{Resource: "pods", Namespace: "default", Name: "a"}, UID: "u", Object: []byte("{}")},
		State: state, Desired: true, LastRemoteSeq: revision, StreamEpoch: "s1",
	}}
}

// A tombstone hides late messages until the cursor has passed it, and no longer.
func TestIndex_KeepsTombstonesAheadOfCursor(t *testing.T) {
	x := newIndex(8)
	x.Load(wire.Cursor{StreamEpoch: "s1", Sequence: 5}, []record.Change{newChange(record.Tombstone, 5)}, 5)
	key := newChange(record.Live, 1).Record.Key
	if r := x.Lookup(key); r != nil {
		t.Errorf("a tombstone that the cursor has passed is kept: %+v", r)
	}
	x.Apply([]record.Change{newChange(record.Live, 7), newChange(record.Tombstone, 8)})
	if r := x.Lookup(key); r == nil || r.State != record.Tombstone {
		t.Errorf("a tombstone ahead of the cursor is %+v", r)
	}
	if list, revision := x.ListState(record.Live); len(list) != 0 || revision != 8 {
		t.Errorf("%d objects at %d after a tombstone", len(list), revision)
	}
	x.Apply([]record.Change{{Cursor: &wire.Cursor{StreamEpoch: "s1", Sequence: 8}, Revision: 9}})
	if r := x.Lookup(key); r != nil || x.Revision() != 9 {
		t.Errorf("at %d the tombstone is still %+v", x.Revision(), r)
	}
}

func TestIndex_WatchFollowsRevisions(t *testing.T) {
	x := newIndex(2)
	x.Load(wire.Cursor{}, []record.Change{newChange(record.Live, 3)}, 3)
	if _, err := x.Watch("", "pods", "", 2); !errors.Is(err, index.ErrGone) {
		t.Errorf("watch from before the start: %v", err)
	}
	w, err := x.Watch("", "pods", "", 3)
	kit.Must(t, err)
	defer w.Stop()
	x.Apply([]record.Change{newChange(record.Live, 4), newChange(record.Gone, 5)})
	for _, want := range []index.EventType{index.Modified, index.Deleted} {
		if e := kit.Receive(t, "event", w.Events()); e.Type != want || e.Prev == nil {
			t.Errorf("event %+v, want %s", e, want)
		}
	}
	slow, err := x.Watch("", "pods", "", 3)
	kit.Must(t, err)
	defer slow.Stop()
	x.Apply([]record.Change{newChange(record.Live, 6), newChange(record.Live, 7)})
	if _, err := slow.Next(t.Context()); !errors.Is(err, index.ErrGone) {
		t.Errorf("a watcher two events behind the window: %v", err)
	}
}
