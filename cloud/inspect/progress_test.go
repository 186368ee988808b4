package inspect_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	api "github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/cloud/inspect"
)

// TestComputeProgress: the stream holds objects at 10, 20 and 40 and the marker at 30.
func TestComputeProgress(t *testing.T) {
	oldest := time.Unix(1000, 0)
	held := []uint64{10, 20, 30, 40}
	missing := func(after uint64) int {
		n := 0
		for _, sequence := range held {
			if sequence > after {
				n++
			}
		}
		return n
	}
	beat := func(epoch string, sequence uint64) *api.Heartbeat {
		return &api.Heartbeat{Cursor: wire.Cursor{StoreEpoch: "s", StreamEpoch: epoch, Sequence: sequence}}
	}
	for name, tt := range map[string]struct {
		heard    *api.Heartbeat
		consumer *api.Consumer
		want     api.Progress
	}{
		"nothing known":            {want: api.Progress{}},
		"all applied":              {heard: beat("e", 40), want: api.Progress{Delivered: new(3), Applied: new(3), AppliedBy: api.AppliedByHeartbeat, Sequence: 40}},
		"the marker is no object":  {heard: beat("e", 20), want: api.Progress{Delivered: new(2), Applied: new(2), AppliedBy: api.AppliedByHeartbeat, Sequence: 20, Oldest: oldest}},
		"only the marker to come":  {heard: beat("e", 39), want: api.Progress{Delivered: new(2), Applied: new(2), AppliedBy: api.AppliedByHeartbeat, Sequence: 39, Oldest: oldest}},
		"another life of a stream": {heard: beat("old", 1000), want: api.Progress{Delivered: new(0), Applied: new(0), AppliedBy: api.AppliedByHeartbeat, Oldest: oldest}},
		"a wiped disk is empty though the consumer saw acks": {
			heard: beat("", 0), consumer: &api.Consumer{Acked: true, AckFloor: 40, Delivered: 40},
			want: api.Progress{Delivered: new(3), Applied: new(0), AppliedBy: api.AppliedByHeartbeat, Oldest: oldest},
		},
		"sent and not acked": {
			heard: beat("e", 10), consumer: &api.Consumer{Acked: true, AckFloor: 10, Delivered: 20, AckPending: 1, Pending: 2},
			want: api.Progress{Delivered: new(2), Applied: new(1), AppliedBy: api.AppliedByHeartbeat, Sequence: 10, Oldest: oldest},
		},
		"an ack is newer than the heartbeat": {
			heard: beat("e", 10), consumer: &api.Consumer{Acked: true, AckFloor: 20, Delivered: 20, Pending: 2},
			want: api.Progress{Delivered: new(2), Applied: new(2), AppliedBy: api.AppliedByHeartbeat, Sequence: 20, Oldest: oldest},
		},
		"where a consumer starts proves nothing": {
			heard: beat("e", 10), consumer: &api.Consumer{AckFloor: 40, Delivered: 40},
			want: api.Progress{Delivered: new(3), Applied: new(1), AppliedBy: api.AppliedByHeartbeat, Sequence: 10, Oldest: oldest},
		},
		"without a heartbeat the acks tell": {
			consumer: &api.Consumer{Acked: true, AckFloor: 30, Delivered: 30, Pending: 1},
			want:     api.Progress{Delivered: new(2), Applied: new(2), AppliedBy: api.AppliedByConsumer, Sequence: 30, Oldest: oldest},
		},
		"without either only what was sent is known": {
			consumer: &api.Consumer{AckFloor: 30, Delivered: 30, Pending: 1},
			want:     api.Progress{Delivered: new(2)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.want.Desired, tt.want.Complete, tt.want.Consumer = 3, true, tt.consumer
			got := inspect.ComputeProgress(tt.heard, tt.consumer, "e", 30, len(held), missing, oldest)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("progress (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHeartbeatLog_RemembersWhenCursorPassed(t *testing.T) {
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	beat := func(store string, sequence uint64) wire.Heartbeat {
		return wire.Heartbeat{Cursor: wire.Cursor{StoreEpoch: store, StreamEpoch: "e", Sequence: sequence}}
	}
	b := inspect.NewHeartbeatLog()
	if b.LastHeartbeat("a") != nil || !b.PassedAt("a", 1).IsZero() {
		t.Error("something is known before the first heartbeat")
	}
	for second, sequence := range []uint64{5, 5, 8, 8, 9} {
		b.RecordHeartbeat("a", beat("s", sequence), at(int64(second)))
	}
	for sequence, want := range map[uint64]time.Time{
		5: {}, // it had passed it at the first heartbeat, maybe long before
		6: at(2), 8: at(2), 9: at(4), 10: {},
	} {
		if got := b.PassedAt("a", sequence); !got.Equal(want) {
			t.Errorf("passed %d at %v, want %v", sequence, got, want)
		}
	}
	if got := b.LastHeartbeat("a"); got == nil || !got.At.Equal(at(4)) || got.Cursor.Sequence != 9 {
		t.Errorf("last heard %+v", got)
	}
	for second := range int64(1000) {
		b.RecordHeartbeat("a", beat("s", uint64(10+second)), at(10+second))
	}
	if got := b.PassedAt("a", 1009); !got.Equal(at(1009)) {
		t.Errorf("after many moves the last one is told as of %v", got)
	}
	if got := b.PassedAt("a", 20); !got.IsZero() {
		t.Errorf("what was forgotten is told as of %v", got)
	}
	b.RecordHeartbeat("a", beat("new disk", 2), at(5000))
	if got := b.PassedAt("a", 9); !got.IsZero() {
		t.Errorf("the acks of a lost disk count: %v", got)
	}
	b.PruneNodes(func(string) bool { return false })
	if b.LastHeartbeat("a") != nil {
		t.Error("a node that is gone is remembered")
	}
}
