package desired

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/frond-edge/frond/api/wire"
)

// site is one edge node as the engine sees it.
type site struct {
	name string

	// Guarded by Engine.mu.

	// wants are the vertices that the node needs.
	wants map[*vertex]struct{}
	// present: there is a Node object, and it is an edge node's.
	present bool
	// admitted: the node has proved itself to the cloud, so it is served whatever its Node says.
	admitted bool
	// deleted: its Node object was there and is gone. Heartbeats do not hold up the grace of such a node.
	deleted bool
	// scopes are what components at the node were granted, and told is whether it is known what they asked for.
	scopes map[scopeID]*scope
	told   bool
	// withheld are the needed objects that are in protected namespaces, each told of once.
	withheld map[wire.Key]struct{}
	// absentSince is when the Node object was last known, or when a node that never had one was last heard.
	absentSince time.Time

	mu sync.Mutex
	// Guarded by mu.

	// held is what the stream holds; nil while it is not known, then nothing is published.
	held map[wire.Key]record
	// tombs are the keys in held that are tombstones, each waiting for the node's ack.
	tombs map[wire.Key]struct{}
	// markers counts the scopes' markers in held, tombstones included.
	markers int
	// pods are the keys in held that are the node's own pods.
	pods  map[wire.Key]struct{}
	guard guarded
	// stamp counts the changes of held; stamps says at which count a key changed since the last load began.
	stamp  uint64
	stamps map[wire.Key]uint64
	// first are the keys still to be seen to before the marker may be published; nil when it has been.
	first map[wire.Key]struct{}
	// acked is the stream sequence up to which the node has everything on disk.
	acked uint64
	// term is the term of ownership that held belongs to.
	term uint64
	// top is the highest sequence seen in any subject of the node.
	top uint64
	// newest are the newest resourceVersions of each kind among all that was held in this term, of the present Kubernetes history.
	newest map[groupResource]string
}

func newSite(name string, now time.Time) *site {
	return &site{name: name, wants: map[*vertex]struct{}{}, absentSince: now}
}

// release forgets what the stream holds: another replica owns the node now.
func (s *site) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held, s.tombs, s.pods, s.stamps, s.first, s.newest = nil, nil, nil, nil, nil, nil
	s.guard = guarded{}
}

func (s *site) loaded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held != nil
}

// renew forgets what the stream held in another term and reports whether it knows what it holds in this one.
func (s *site) renew(term uint64) (loaded bool) {
	s.mu.Lock()
	stale := s.held != nil && s.term != term
	s.mu.Unlock()
	if stale {
		s.release()
	}
	return s.loaded()
}

// upTo is the highest sequence seen; known is false while nothing is loaded.
func (s *site) upTo() (top uint64, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.top, s.held != nil
}

// view is what a worker needs of a site to work on one key.
type view struct {
	held record
	// acked and top as in site, at the time of the look.
	acked, top uint64
}

// look returns the view of a key; known is false while nothing is loaded.
func (s *site) look(key wire.Key) (v view, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return view{held: s.held[key], acked: s.acked, top: s.top}, s.held != nil
}

// beginLoad notes the time before the stream is read.
func (s *site) beginLoad() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stamps = map[wire.Key]uint64{}
	return s.stamp
}

// endLoad takes over what was read. What a worker changed since beginLoad is newer than the reading and stays.
func (s *site) endLoad(since uint64, read map[wire.Key]wire.Message, cluster string, term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.term = term
	held := make(map[wire.Key]record, len(read))
	for key, m := range read {
		held[key] = recordOf(m, cluster)
		s.top = max(s.top, m.Sequence)
	}
	for key, stamp := range s.stamps {
		if stamp <= since {
			continue
		}
		if now, ok := s.held[key]; ok {
			held[key] = now
		} else {
			delete(held, key)
		}
	}
	s.held, s.stamps, s.tombs, s.pods = held, nil, map[wire.Key]struct{}{}, map[wire.Key]struct{}{}
	s.markers, s.newest = 0, map[groupResource]string{}
	s.first = map[wire.Key]struct{}{wire.SnapshotMarker(): {}} // not complete before expect
	for key, r := range held {
		s.rise(key, r)
		if r.deleted {
			s.tombs[key] = struct{}{}
		}
		if r.isOwnPod(key) {
			s.pods[key] = struct{}{}
		}
		if _, ok := wire.ScopeOf(key); ok {
			s.markers++
		}
	}
}

// expect sets the keys that must be seen to before the marker.
func (s *site) expect(keys map[wire.Key]struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first = keys
}

// finish notes that a key has been seen to and reports whether it was the last one before the marker.
func (s *site) finish(key wire.Key) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.first[key]; !ok {
		return false
	}
	delete(s.first, key)
	return len(s.first) == 0
}

// complete reports whether nothing stands before the marker.
func (s *site) complete() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held != nil && len(s.first) == 0
}

// note records what a worker has done to a key; the zero record says that the subject is empty. A new message has a higher
// sequence than all seen before it was sent (top). A lower one means that the server took the publish for a repetition
// of an old one and stored nothing; note then reports false and records nothing.
func (s *site) note(key wire.Key, r record, top uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.sequence != 0 && r.sequence <= top {
		return false
	}
	s.stamp++
	if s.stamps != nil {
		s.stamps[key] = s.stamp
	}
	if s.held == nil {
		return true // released meanwhile
	}
	delete(s.tombs, key)
	s.count(key, r.sequence != 0)
	switch r.sequence {
	case 0:
		delete(s.held, key)
		delete(s.pods, key)
	default:
		s.held[key] = r
		s.rise(key, r)
		delete(s.pods, key)
		if r.isOwnPod(key) {
			s.pods[key] = struct{}{}
		}
		if r.deleted {
			s.tombs[key] = struct{}{}
		}
	}
	s.top = max(s.top, r.sequence)
	return true
}

// rise keeps newest right. The caller holds mu.
func (s *site) rise(key wire.Key, r record) {
	kind := kindOf(key)
	if r.foreign || r.version == "" {
		return
	}
	if was, known := s.newest[kind]; !known || older(was, r.version) {
		s.newest[kind] = r.version
	}
}

// newestOf is how much a cache of a kind must have heard not to be behind what is held; "" where nothing says so.
func (s *site) newestOf(kind groupResource) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest[kind]
}

// older reports whether one resourceVersion comes before another; one that is none does not.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// count keeps markers right before held changes. The caller holds mu.
func (s *site) count(key wire.Key, holds bool) {
	if _, ok := wire.ScopeOf(key); !ok {
		return
	}
	_, held := s.held[key]
	switch {
	case holds && !held:
		s.markers++
	case !holds && held:
		s.markers--
	}
}

// ack moves the acked sequence and returns the tombstones that it covers and that were made before a time.
func (s *site) ack(sequence uint64, before time.Time) []wire.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acked = sequence
	var covered []wire.Key
	for key := range s.tombs {
		if r := s.held[key]; r.sequence <= sequence && r.at.Before(before) {
			covered = append(covered, key)
		}
	}
	return covered
}
