// Package published holds what the stream holds for a node, as far as this replica knows.
package published

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/shortkey"
)

// State is what the stream holds for one node, for one term of this replica's ownership. The zero State is not loaded. Its
// methods may be called concurrently.
type State struct {
	mu sync.Mutex
	// Guarded by mu.

	// records are what the stream holds; nil while that is not known, and then nothing is published.
	records *table
	// tombstones are the keys in records that are tombstones, each waiting for the node's ack.
	tombstones map[wire.Key]struct{}
	// markerCount counts the scopes' markers in records, tombstones included.
	markerCount int
	// ownPods are the keys in records that are the node's own pods.
	ownPods map[shortkey.Key]struct{}
	// totals sum up records.
	totals totals
	// revision counts the changes of records. revisions holds the count at which a key changed since the last load began.
	revision  uint64
	revisions map[wire.Key]uint64
	// pending are the keys that must be processed before the snapshot marker may be published; nil when it has been.
	pending map[wire.Key]struct{}
	// working are the keys that are worked on, and since when. Work that has failed stays for WorkLimit: its message may be on its way.
	working working
	// ackedSequence is the stream sequence up to which the node has all messages on disk.
	ackedSequence uint64
	// heard: the node has acked since the last load began, so that ackedSequence is of the stream that records are of.
	heard bool
	// term is the term of ownership that records belong to.
	term uint64
	// topSequence is the highest sequence seen in any subject of the node.
	topSequence uint64
	// newestVersions are the newest resourceVersions of each kind among all that was published in this term, of the
	// present Kubernetes history.
	newestVersions map[kinds.ID]string
}

// Forget drops what the stream holds: another replica owns the node now.
func (s *State) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records, s.tombstones, s.ownPods, s.revisions, s.pending, s.newestVersions = nil, nil, nil, nil, nil, nil
	s.totals = totals{}
}

// Loaded reports whether it is known what the stream holds.
func (s *State) Loaded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records != nil
}

// OfOtherTerm reports whether what is loaded was loaded in another term.
func (s *State) OfOtherTerm(term uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records != nil && s.term != term
}

// LastSequence returns the highest sequence seen; known is false while nothing is loaded.
func (s *State) LastSequence() (top uint64, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.topSequence, s.records != nil
}

// View is the part of a State that a decision about one key needs.
type View struct {
	Record Record
	// AckedSequence is the stream sequence up to which the node has all messages on disk, TopSequence the highest one seen
	// for the node, both at the time of the read.
	AckedSequence, TopSequence uint64
}

// View returns the view of a key; known is false while nothing is loaded.
func (s *State) View(key wire.Key) (v View, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, _ := s.records.get(key)
	return View{Record: r, AckedSequence: s.ackedSequence, TopSequence: s.topSequence}, s.records != nil
}

// BeginWork is View, for who works on the key until FinishPending: meanwhile a message about it may be on its way.
func (s *State) BeginWork(key wire.Key) (v View, known bool) {
	v, known = s.View(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if known {
		s.working.begin(key)
	}
	return v, known
}

// BeginLoad returns the revision before the stream is read, for EndLoad.
func (s *State) BeginLoad() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revisions, s.heard = map[wire.Key]uint64{}, false
	return s.revision
}

// EndLoad stores what was read from the stream. A record that a worker changed since BeginLoad is newer than the read and stays.
func (s *State) EndLoad(since uint64, read map[wire.Key]wire.Message, cluster string, term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.term = term
	held := make(map[wire.Key]Record, len(read))
	for key, m := range read {
		held[key] = RecordOf(m, cluster)
		s.topSequence = max(s.topSequence, m.Sequence)
	}
	for key, stamp := range s.revisions {
		if stamp <= since {
			continue
		}
		if now, ok := s.records.get(key); ok {
			held[key] = now
		} else {
			delete(held, key)
		}
	}
	s.records, s.revisions, s.tombstones, s.ownPods = newTable(len(held)), nil, map[wire.Key]struct{}{}, map[shortkey.Key]struct{}{}
	s.markerCount, s.newestVersions, s.totals = 0, map[kinds.ID]string{}, totals{}
	s.pending = map[wire.Key]struct{}{wire.SnapshotMarker(): {}} // not complete before SetPending
	for key, r := range held {
		s.records.set(key, r)
		s.bumpNewest(key, r)
		s.totals.add(key, r)
		if r.Deleted {
			s.tombstones[key] = struct{}{}
		}
		if r.isOwnPod(key) {
			s.ownPods[shortkey.Of(key)] = struct{}{}
		}
		if _, ok := wire.ScopeOf(key); ok {
			s.markerCount++
		}
	}
}

// SetPending sets the keys that must be processed before the snapshot marker.
func (s *State) SetPending(keys map[wire.Key]struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = keys
}

// FinishPending ends the work on a key, removes it from pending, and reports whether it was the last one before the snapshot marker.
func (s *State) FinishPending(key wire.Key) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.working.end(key)
	if _, ok := s.pending[key]; !ok {
		return false
	}
	delete(s.pending, key)
	if len(s.pending) > 0 {
		return false
	}
	s.pending = nil
	return true
}

// SnapshotComplete reports whether no key is pending before the snapshot marker.
func (s *State) SnapshotComplete() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records != nil && len(s.pending) == 0
}

// Store records the result of a worker's action on a key; the zero record says that the subject is empty. A
// new message has a higher sequence than all seen before it was sent (top). A lower sequence means that the server took
// the publish for a duplicate of an old one and stored nothing; Store then reports false and records nothing.
func (s *State) Store(key wire.Key, r Record, top uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Sequence != 0 && r.Sequence <= top {
		return false
	}
	s.revision++
	if s.revisions != nil {
		s.revisions[key] = s.revision
	}
	if s.records == nil {
		return true // released meanwhile
	}
	delete(s.tombstones, key)
	s.countMarkers(key, r.Sequence != 0)
	if was, ok := s.records.get(key); ok {
		s.totals.remove(key, was)
	}
	switch r.Sequence {
	case 0:
		s.records.remove(key)
		delete(s.ownPods, shortkey.Of(key))
	default:
		s.records.set(key, r)
		s.totals.add(key, r)
		s.bumpNewest(key, r)
		delete(s.ownPods, shortkey.Of(key))
		if r.isOwnPod(key) {
			s.ownPods[shortkey.Of(key)] = struct{}{}
		}
		if r.Deleted {
			s.tombstones[key] = struct{}{}
		}
	}
	s.topSequence = max(s.topSequence, r.Sequence)
	return true
}

// bumpNewest raises the kind's entry in newestVersions to the record's version. The caller holds mu.
func (s *State) bumpNewest(key wire.Key, r Record) {
	kind := kinds.Of(key)
	if r.ForeignEpoch || r.Version == "" {
		return
	}
	if was, known := s.newestVersions[kind]; !known || OlderVersion(was, r.Version) {
		s.newestVersions[kind] = r.Version
	}
}

// NewestVersion returns the resourceVersion that a cache of a kind must have reached not to be behind the stream; "" if none is known.
func (s *State) NewestVersion(kind kinds.ID) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newestVersions[kind]
}

// OlderVersion reports whether one resourceVersion precedes another; false if either of them is not a valid one.
func OlderVersion(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// countMarkers updates markerCount before records change. The caller holds mu.
func (s *State) countMarkers(key wire.Key, holds bool) {
	if _, ok := wire.ScopeOf(key); !ok {
		return
	}
	_, held := s.records.get(key)
	switch {
	case holds && !held:
		s.markerCount++
	case !holds && held:
		s.markerCount--
	}
}

// Acked raises the acked sequence and returns the tombstones that it covers and that were made before a time.
func (s *State) Acked(sequence uint64, before time.Time) []wire.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ackedSequence, s.heard = sequence, true
	var covered []wire.Key
	for key := range s.tombstones {
		if r, _ := s.records.get(key); r.Sequence <= sequence && r.MadeAt.Before(before) {
			covered = append(covered, key)
		}
	}
	return covered
}
