package published

import (
	"slices"
	"time"

	"github.com/frond-edge/frond/api/wire"
)

// MarkerStale reports whether the stream holds a scope's marker and lacks objects that are older: it has lost them. Kubernetes tells the
// second in which an object was created. One of the marker's second counts as older: a marker that is made again costs a message, and one
// that is kept would hide a loss.
func (s *State) MarkerStale(marker wire.Key, born map[wire.Key]time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	mark, ok := s.records.get(marker)
	if !ok || mark.Deleted {
		return false
	}
	for key, at := range born {
		if r, ok := s.records.get(key); (!ok || r.Deleted) && at.Before(mark.MadeAt) {
			return true
		}
	}
	return false
}

// Holds reports whether the stream holds an object.
func (s *State) Holds(key wire.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records.get(key)
	return ok && !r.Deleted
}

// Removed reports whether the node is known to have an object no more: it has confirmed, since this replica has read the stream, that its disk has
// all that the stream holds for it up to the end of the first publication and to the object's tombstone. While a message about the object may be on
// its way, it is not.
func (s *State) Removed(key wire.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshot, complete := s.records.get(wire.SnapshotMarker())
	if !s.heard || !complete || len(s.pending) > 0 || s.ackedSequence < snapshot.Sequence {
		return false
	}
	if s.working.on(key) {
		return false
	}
	r, ok := s.records.get(key)
	return !ok || r.Deleted && r.Sequence <= s.ackedSequence
}

// HasMarker reports whether the stream holds the marker of a scope that an object belongs to.
func (s *State) HasMarker(key wire.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.markerCount == 0 {
		return false
	}
	for _, namespace := range [2]string{"", key.Namespace} {
		scope := wire.Scope{Group: key.Group, Resource: key.Resource, Namespace: namespace}
		if r, ok := s.records.get(scope.Marker()); ok && !r.Deleted {
			return true
		}
	}
	return false
}

// Leftover returns the objects of a scope that the stream holds, if its marker is gone.
func (s *State) Leftover(ended wire.Scope) []wire.Key {
	s.mu.Lock()
	r, ok := s.records.get(ended.Marker())
	s.mu.Unlock()
	if ok && !r.Deleted {
		return nil
	}
	return s.Covered(ended)
}

// Covered returns the objects of a scope that the stream holds.
func (s *State) Covered(of wire.Scope) []wire.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []wire.Key
	for key, r := range s.records.all() {
		if !r.deleted && of.Covers(key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// OwnPods returns the records of the node's own pods, tombstones included. The caller owns the map.
func (s *State) OwnPods() map[wire.Key]Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	pods := make(map[wire.Key]Record, len(s.ownPods))
	for pod := range s.ownPods {
		pods[pod.Wire()], _ = s.records.get(pod.Wire())
	}
	return pods
}

// Progress returns how far behind the node is if it has everything up to a stream sequence on disk: how many of the
// changes that the stream holds for it have not arrived, and when the first of them was made. known is false while nothing
// is loaded. It reads each record of a node that is behind, and none of one that is not.
func (s *State) Progress(sequence uint64) (behind int, oldest time.Time, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sequence >= s.totals.lastSequence(s.records) {
		return 0, time.Time{}, s.records != nil
	}
	for key, r := range s.records.all() {
		if r.sequence <= sequence || key == wire.SnapshotMarker() {
			continue
		}
		if behind++; oldest.IsZero() || r.madeAt.Before(oldest) {
			oldest = r.madeAt
		}
	}
	return behind, oldest, s.records != nil
}

// Inventory sums up what the stream holds, without the objects in except, and returns the sequence up to
// which the sum reaches. A node whose cursor has reached that sequence holds the same objects. known is false while
// nothing is loaded, or the first publication is in progress. It reads the records of the objects in except only.
func (s *State) Inventory(except []wire.Key) (census wire.Inventory, upTo uint64, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.records == nil || len(s.pending) > 0 {
		return census, 0, false
	}
	without := s.totals
	for i, key := range except {
		if r, ok := s.records.get(key); ok && !slices.Contains(except[:i], key) {
			without.remove(key, r)
		}
	}
	return without.live, s.totals.lastSequence(s.records), true
}
