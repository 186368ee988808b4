package desired

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/frond-edge/frond/api/wire"
)

// nodeState is the engine's state of one edge node.
type nodeState struct {
	name string

	// Guarded by Engine.mu.

	// wants are the vertices that the node needs.
	wants map[*vertex]struct{}
	// present: there is a Node object, and it is an edge node's.
	present bool
	// admitted: the node has authenticated to the cloud, so it is served whatever its Node says.
	admitted bool
	// deleted: its Node object existed and is gone. Heartbeats do not extend the grace period of such a node.
	deleted bool
	// scopes are the scopes that components at the node were granted. scopesLoaded: the node's scope requests are known.
	scopes       map[scopeID]*grantedScope
	scopesLoaded bool
	// withheld are the needed objects in protected namespaces, each reported once.
	withheld map[wire.Key]struct{}
	// absentSince is when the Node object was last known, or when a node that never had one last sent a heartbeat.
	absentSince time.Time

	mu sync.Mutex
	// Guarded by mu.

	// published is what the stream holds; nil while that is not known, and then nothing is published.
	published map[wire.Key]streamRecord
	// tombstones are the keys in published that are tombstones, each waiting for the node's ack.
	tombstones map[wire.Key]struct{}
	// markerCount counts the scopes' markers in published, tombstones included.
	markerCount int
	// ownPods are the keys in published that are the node's own pods.
	ownPods map[wire.Key]struct{}
	guard   guardState
	// revision counts the changes of published. revisions holds the count at which a key changed since the last load began.
	revision  uint64
	revisions map[wire.Key]uint64
	// pending are the keys that must be processed before the snapshot marker may be published; nil when it has been.
	pending map[wire.Key]struct{}
	// ackedSequence is the stream sequence up to which the node has all messages on disk.
	ackedSequence uint64
	// term is the term of ownership that published belongs to.
	term uint64
	// topSequence is the highest sequence seen in any subject of the node.
	topSequence uint64
	// newestVersions are the newest resourceVersions of each kind among all that was published in this term, of the
	// present Kubernetes history.
	newestVersions map[groupResource]string
}

func newNodeState(name string, now time.Time) *nodeState {
	return &nodeState{name: name, wants: map[*vertex]struct{}{}, absentSince: now}
}

// forgetPublished drops what the stream holds: another replica owns the node now.
func (s *nodeState) forgetPublished() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.published, s.tombstones, s.ownPods, s.revisions, s.pending, s.newestVersions = nil, nil, nil, nil, nil, nil
	s.guard = guardState{}
}

func (s *nodeState) loaded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.published != nil
}

// renewTerm drops what was loaded in another term, and reports whether the stream's content is loaded for this term.
func (s *nodeState) renewTerm(term uint64) (loaded bool) {
	s.mu.Lock()
	stale := s.published != nil && s.term != term
	s.mu.Unlock()
	if stale {
		s.forgetPublished()
	}
	return s.loaded()
}

// lastSequence returns the highest sequence seen; known is false while nothing is loaded.
func (s *nodeState) lastSequence() (top uint64, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.topSequence, s.published != nil
}

// keyView is the part of a nodeState that a worker needs for one key.
type keyView struct {
	published streamRecord
	// ackedSequence and topSequence are those of the nodeState at the time of the read.
	ackedSequence, topSequence uint64
}

// viewOf returns the view of a key; known is false while nothing is loaded.
func (s *nodeState) viewOf(key wire.Key) (v keyView, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return keyView{published: s.published[key], ackedSequence: s.ackedSequence, topSequence: s.topSequence}, s.published != nil
}

// beginLoad returns the revision before the stream is read.
func (s *nodeState) beginLoad() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revisions = map[wire.Key]uint64{}
	return s.revision
}

// endLoad stores what was read from the stream. A record that a worker changed since beginLoad is newer than the read and stays.
func (s *nodeState) endLoad(since uint64, read map[wire.Key]wire.Message, cluster string, term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.term = term
	held := make(map[wire.Key]streamRecord, len(read))
	for key, m := range read {
		held[key] = recordOf(m, cluster)
		s.topSequence = max(s.topSequence, m.Sequence)
	}
	for key, stamp := range s.revisions {
		if stamp <= since {
			continue
		}
		if now, ok := s.published[key]; ok {
			held[key] = now
		} else {
			delete(held, key)
		}
	}
	s.published, s.revisions, s.tombstones, s.ownPods = held, nil, map[wire.Key]struct{}{}, map[wire.Key]struct{}{}
	s.markerCount, s.newestVersions = 0, map[groupResource]string{}
	s.pending = map[wire.Key]struct{}{wire.SnapshotMarker(): {}} // not complete before setPending
	for key, r := range held {
		s.bumpNewest(key, r)
		if r.deleted {
			s.tombstones[key] = struct{}{}
		}
		if r.isOwnPod(key) {
			s.ownPods[key] = struct{}{}
		}
		if _, ok := wire.ScopeOf(key); ok {
			s.markerCount++
		}
	}
}

// setPending sets the keys that must be processed before the snapshot marker.
func (s *nodeState) setPending(keys map[wire.Key]struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = keys
}

// finishPending removes a processed key from pending and reports whether it was the last one before the snapshot marker.
func (s *nodeState) finishPending(key wire.Key) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.pending[key]; !ok {
		return false
	}
	delete(s.pending, key)
	return len(s.pending) == 0
}

// snapshotComplete reports whether no key is pending before the snapshot marker.
func (s *nodeState) snapshotComplete() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.published != nil && len(s.pending) == 0
}

// recordPublished records the result of a worker's action on a key; the zero record says that the subject is empty. A
// new message has a higher sequence than all seen before it was sent (top). A lower sequence means that the server took
// the publish for a duplicate of an old one and stored nothing; recordPublished then reports false and records nothing.
func (s *nodeState) recordPublished(key wire.Key, r streamRecord, top uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.sequence != 0 && r.sequence <= top {
		return false
	}
	s.revision++
	if s.revisions != nil {
		s.revisions[key] = s.revision
	}
	if s.published == nil {
		return true // released meanwhile
	}
	delete(s.tombstones, key)
	s.countMarkers(key, r.sequence != 0)
	switch r.sequence {
	case 0:
		delete(s.published, key)
		delete(s.ownPods, key)
	default:
		s.published[key] = r
		s.bumpNewest(key, r)
		delete(s.ownPods, key)
		if r.isOwnPod(key) {
			s.ownPods[key] = struct{}{}
		}
		if r.deleted {
			s.tombstones[key] = struct{}{}
		}
	}
	s.topSequence = max(s.topSequence, r.sequence)
	return true
}

// bumpNewest raises the kind's entry in newestVersions to the record's version. The caller holds mu.
func (s *nodeState) bumpNewest(key wire.Key, r streamRecord) {
	kind := kindOf(key)
	if r.foreignEpoch || r.version == "" {
		return
	}
	if was, known := s.newestVersions[kind]; !known || olderVersion(was, r.version) {
		s.newestVersions[kind] = r.version
	}
}

// newestVersion returns the resourceVersion that a cache of a kind must have reached not to be behind published; "" if none is known.
func (s *nodeState) newestVersion(kind groupResource) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newestVersions[kind]
}

// olderVersion reports whether one resourceVersion precedes another; false if either of them is not a valid one.
func olderVersion(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// countMarkers updates markerCount before published changes. The caller holds mu.
func (s *nodeState) countMarkers(key wire.Key, holds bool) {
	if _, ok := wire.ScopeOf(key); !ok {
		return
	}
	_, held := s.published[key]
	switch {
	case holds && !held:
		s.markerCount++
	case !holds && held:
		s.markerCount--
	}
}

// recordAck raises the acked sequence and returns the tombstones that it covers and that were made before a time.
func (s *nodeState) recordAck(sequence uint64, before time.Time) []wire.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ackedSequence = sequence
	var covered []wire.Key
	for key := range s.tombstones {
		if r := s.published[key]; r.sequence <= sequence && r.madeAt.Before(before) {
			covered = append(covered, key)
		}
	}
	return covered
}
