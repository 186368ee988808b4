package published_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/published"
)

func podKey(name string) wire.Key {
	return wire.Key{Resource: "pods", Namespace: "n", Name: name}
}

func message(op wire.Operation, version string, sequence uint64) wire.Message {
	return wire.Message{Op: op, UID: "u", Version: version, Sequence: sequence, ClusterEpoch: "one", Time: time.Unix(100, 0)}
}

// load loads messages as all that the stream holds.
func load(s *published.State, held map[wire.Key]wire.Message) {
	s.EndLoad(s.BeginLoad(), held, "one", 1)
}

// A worker may store a record while the stream is read: that record is newer than the read.
func TestState_RecordsStoredDuringLoadStay(t *testing.T) {
	var s published.State
	load(&s, map[wire.Key]wire.Message{podKey("a"): message(wire.Apply, "1", 1), podKey("b"): message(wire.Apply, "2", 2)})
	since := s.BeginLoad()
	s.Store(podKey("a"), published.RecordOf(message(wire.Apply, "7", 7), "one"), 2)
	s.Store(podKey("b"), published.Record{}, 0)
	s.EndLoad(since, map[wire.Key]wire.Message{podKey("a"): message(wire.Apply, "1", 1), podKey("b"): message(wire.Apply, "2", 2)}, "one", 1)
	if view, _ := s.View(podKey("a")); view.Record.Version != "7" || view.TopSequence != 7 {
		t.Errorf("the record is %+v", view)
	}
	if view, _ := s.View(podKey("b")); view.Record != (published.Record{}) {
		t.Errorf("a purged record is back: %+v", view)
	}
	if got := s.NewestVersion(kinds.ID{Resource: "pods"}); got != "7" {
		t.Errorf("the newest version is %q", got)
	}
}

// A sequence that is not above those seen says that the stream stored nothing.
func TestState_RefusesOldSequence(t *testing.T) {
	var s published.State
	load(&s, map[wire.Key]wire.Message{podKey("a"): message(wire.Apply, "1", 5)})
	if s.Store(podKey("b"), published.RecordOf(message(wire.Apply, "2", 5), "one"), 5) {
		t.Error("a repeated sequence was recorded")
	}
	if view, known := s.View(podKey("b")); !known || view.Record.Sequence != 0 {
		t.Errorf("recorded %+v", view)
	}
}

// Nothing is known of a State that was not loaded, or that was forgotten.
func TestState_Forget(t *testing.T) {
	var s published.State
	if s.Loaded() || s.OfOtherTerm(2) || s.SnapshotComplete() {
		t.Error("the zero State knows something")
	}
	load(&s, nil)
	if !s.Loaded() || s.OfOtherTerm(1) || !s.OfOtherTerm(2) {
		t.Error("the term is lost")
	}
	s.SetPending(map[wire.Key]struct{}{podKey("a"): {}, podKey("b"): {}})
	if s.FinishPending(podKey("a")) || s.SnapshotComplete() || !s.FinishPending(podKey("b")) || !s.SnapshotComplete() {
		t.Error("the snapshot is not complete after the last pending key, or before")
	}
	s.Forget()
	if _, known := s.LastSequence(); known || s.Loaded() || s.SnapshotComplete() {
		t.Error("it still knows something")
	}
	if !s.Store(podKey("a"), published.RecordOf(message(wire.Apply, "1", 9), "one"), 0) || s.Loaded() {
		t.Error("a message that was sent before the release counts as not stored, or as a load")
	}
}

// An object counts as removed once the node has confirmed its tombstone, in the stream that was read.
func TestState_Removed(t *testing.T) {
	var s published.State
	key, ended := podKey("a"), message(wire.Delete, "1", 7)
	held := map[wire.Key]wire.Message{wire.SnapshotMarker(): message(wire.Apply, "1", 5), key: ended}
	expect := func(when string, want bool) {
		t.Helper()
		if got := s.Removed(key); got != want {
			t.Errorf("%s: removed is %t, want %t", when, got, want)
		}
	}
	expect("nothing is loaded", false)
	load(&s, held)
	s.SetPending(nil)
	expect("nothing was heard", false)
	s.Acked(6, time.Time{})
	expect("before the tombstone", false)
	s.Acked(7, time.Time{})
	expect("the tombstone is confirmed", true)
	load(&s, held)
	s.SetPending(nil)
	expect("loaded again: what was heard may be of another stream", false)
	s.Acked(9, time.Time{})
	expect("heard again", true)
	s.Store(key, published.Record{}, 0)
	expect("the tombstone is purged", true)
	s.Acked(4, time.Time{})
	expect("the gateway has lost its disk", false)
	s.Acked(9, time.Time{})
	s.Store(key, published.RecordOf(message(wire.Apply, "2", 10), "one"), 9)
	expect("published again", false)
	s.Acked(10, time.Time{})
	expect("and arrived", false)
	delete(held, wire.SnapshotMarker())
	delete(held, key)
	load(&s, held)
	s.SetPending(nil)
	s.Acked(9, time.Time{})
	expect("the first publication is not complete", false)
}

// What State answers from its indexes is what a walk over all records finds.
func TestState_IndexesAgreeWithWalk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s published.State
		load(&s, nil)
		model := map[wire.Key]published.Record{}
		scope := wire.Scope{Version: "v1", Resource: "pods", Namespace: "n"}
		all := []wire.Key{podKey("a"), podKey("b"), scope.Marker(), {Resource: "configmaps", Namespace: "n", Name: "c"}}
		top := uint64(0)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			key := rapid.SampledFrom(all).Draw(t, "key")
			if rapid.IntRange(0, 4).Draw(t, "action") == 0 {
				s.Store(key, published.Record{}, 0)
				delete(model, key)
				continue
			}
			m := message(rapid.SampledFrom([]wire.Operation{wire.Apply, wire.Delete}).Draw(t, "op"), fmt.Sprint(top+1), top+1)
			m.DeletionReason = rapid.SampledFrom([]wire.DeletionReason{"", wire.DeletionOfCopy}).Draw(t, "reason")
			m.Time = time.Unix(rapid.Int64Range(0, 9).Draw(t, "time"), 0)
			model[key] = published.RecordOf(m, "one")
			s.Store(key, model[key], top)
			top++
		}
		acked, before := rapid.Uint64Range(0, top).Draw(t, "acked"), time.Unix(rapid.Int64Range(0, 9).Draw(t, "before"), 0)
		var purgeable []wire.Key
		own := map[wire.Key]published.Record{}
		for key, r := range model {
			if r.Deleted && r.Sequence <= acked && r.MadeAt.Before(before) {
				purgeable = append(purgeable, key)
			}
			if key.Resource == "pods" && key.Group == "" && r.DeletionReason != wire.DeletionOfCopy {
				own[key] = r
			}
		}
		got := s.Acked(acked, before)
		slices.SortFunc(got, wire.Key.Compare)
		slices.SortFunc(purgeable, wire.Key.Compare)
		if diff := cmp.Diff(purgeable, got); diff != "" {
			t.Errorf("tombstones to purge (-want +got):\n%s", diff)
		}
		if !maps.Equal(own, s.OwnPods()) {
			t.Errorf("own pods %v, want %v", s.OwnPods(), own)
		}
		marker, there := model[scope.Marker()]
		if want := there && !marker.Deleted; s.HasMarker(podKey("x")) != want {
			t.Errorf("the marker is there: %t, want %t", !want, want)
		}
	})
}

// While a key is worked on, a message about it may be on its way: an object that the stream does not hold yet does not count as removed. It ends with the
// work, and for work that has failed after the time for which a message is tried.
func TestState_NotRemovedWhileWorkedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s published.State
		key := podKey("a")
		if _, known := s.BeginWork(key); known {
			t.Error("begun before the stream was read")
		}
		load(&s, map[wire.Key]wire.Message{wire.SnapshotMarker(): message(wire.Apply, "1", 5)})
		s.SetPending(nil)
		s.Acked(9, time.Time{})
		expect := func(when string, want bool) {
			t.Helper()
			if got := s.Removed(key); got != want {
				t.Errorf("%s: removed is %t, want %t", when, got, want)
			}
		}
		expect("never published", true)
		if view, known := s.BeginWork(key); !known || view.AckedSequence != 9 {
			t.Errorf("view %+v, known %t", view, known)
		}
		expect("on its way", false)
		s.FinishPending(podKey("b"))
		expect("another is done", false)
		s.FinishPending(key)
		expect("nothing was sent", true)

		s.BeginWork(key)
		s.Store(key, published.RecordOf(message(wire.Apply, "2", 10), "one"), 9)
		s.FinishPending(key)
		expect("it has arrived", false)
		s.Store(key, published.Record{}, 0)

		s.BeginWork(key)
		<-time.After(published.WorkLimit)
		expect("failed, and sent no more", true)
	})
}
