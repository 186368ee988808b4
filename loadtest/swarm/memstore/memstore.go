// Package memstore is the store of a simulated gateway: which objects it holds, in which version, in memory.
//
// It keeps no payloads: they are handed to an observer as they arrive. It follows the rules of deliver.Store, so that what a loadtest finds
// lost or resurrected is the delivery's doing.
package memstore

import (
	"context"
	"sync"

	"github.com/frond-edge/frond/api/wire"
)

// Object is what is kept of an object.
type Object struct {
	UID, Version, ClusterEpoch string
	// Sequence is its place in the hub's stream.
	Sequence uint64
}

// Observer is told what changed, after it is in the store. In a Replace, gone are the keys that were deleted without a message. It must not
// block.
type Observer func(applied []wire.Message, gone []wire.Key)

// Store implements deliver.Store.
type Store struct {
	observe Observer

	mu      sync.Mutex // guards all fields below
	cursor  wire.Cursor
	objects map[wire.Key]Object
	// ahead are tombstones that the cursor has not passed: an older message of their keys may still come.
	ahead     map[wire.Key]uint64
	inventory wire.Inventory
	// broken is a key that the store loses again and again; zero is none.
	broken wire.Key
}

// New returns an empty store.
func New(storeEpoch string, observe Observer) *Store {
	return &Store{observe: observe, cursor: wire.Cursor{StoreEpoch: storeEpoch}, objects: map[wire.Key]Object{}}
}

// Cursor implements deliver.Store.
func (s *Store) Cursor() wire.Cursor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cursor
}

// Inventory returns the sum over the objects, with the cursor of the same moment.
func (s *Store) Inventory() (wire.Cursor, wire.Inventory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cursor, s.inventory
}

// Holds implements deliver.Store.
func (s *Store) Holds(m wire.Message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[m.Key]
	return ok && o.Sequence == m.Sequence && o.UID == m.UID && o.Version == m.Version && o.ClusterEpoch == m.ClusterEpoch
}

// Object returns what is kept of an object.
func (s *Store) Object(key wire.Key) (Object, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[key]
	return o, ok
}

// Select returns the objects of a resource and a namespace.
func (s *Store) Select(group, resource, namespace string) map[wire.Key]Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[wire.Key]Object{}
	for key, o := range s.objects {
		if key.Group == group && key.Resource == resource && key.Namespace == namespace {
			found[key] = o
		}
	}
	return found
}

// Len returns the number of objects.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.objects)
}

// Apply implements deliver.Store.
func (s *Store) Apply(_ context.Context, messages []wire.Message, sequence uint64) error {
	applied := s.applyAll(messages, sequence)
	if len(applied) > 0 {
		s.observe(applied, nil)
	}
	return nil
}

func (s *Store) applyAll(messages []wire.Message, sequence uint64) (applied []wire.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range messages {
		if m.Sequence <= s.cursor.Sequence || m.Sequence <= s.ahead[m.Key] || m.Sequence <= s.objects[m.Key].Sequence {
			continue
		}
		s.applyMessage(m, sequence)
		applied = append(applied, m)
	}
	s.moveCursor(max(s.cursor.Sequence, sequence))
	return applied
}

// applyMessage applies one message; mu is held.
func (s *Store) applyMessage(m wire.Message, sequence uint64) {
	s.remove(m.Key)
	if m.Op == wire.Delete {
		if m.Sequence > sequence {
			if s.ahead == nil {
				s.ahead = map[wire.Key]uint64{}
			}
			s.ahead[m.Key] = m.Sequence
		}
		return
	}
	delete(s.ahead, m.Key)
	if m.Key == s.broken {
		return
	}
	s.objects[m.Key] = Object{UID: m.UID, Version: m.Version, ClusterEpoch: m.ClusterEpoch, Sequence: m.Sequence}
	s.inventory.Add(m.Key, m.UID, m.Version)
}

// remove removes an object; mu is held.
func (s *Store) remove(key wire.Key) {
	if old, held := s.objects[key]; held {
		s.inventory.Remove(key, old.UID, old.Version)
		delete(s.objects, key)
	}
}

// moveCursor moves the cursor and forgets the tombstones that it passes; mu is held.
func (s *Store) moveCursor(sequence uint64) {
	s.cursor.Sequence = sequence
	for key, at := range s.ahead {
		if at <= sequence {
			delete(s.ahead, key)
		}
	}
}

// Replace implements deliver.Store.
func (s *Store) Replace(_ context.Context, messages []wire.Message, streamEpoch string, sequence uint64) error {
	applied, gone := s.replaceAll(messages, streamEpoch, sequence)
	s.observe(applied, gone)
	return nil
}

func (s *Store) replaceAll(messages []wire.Message, streamEpoch string, sequence uint64) (applied []wire.Message, gone []wire.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := make(map[wire.Key]struct{}, len(messages))
	s.ahead = nil
	for _, m := range messages {
		if m.Op != wire.Delete {
			held[m.Key] = struct{}{}
		}
		if m.Op != "" {
			s.applyMessage(m, sequence)
			applied = append(applied, m)
		}
	}
	for key := range s.objects {
		if _, stays := held[key]; !stays {
			s.remove(key)
			gone = append(gone, key)
		}
	}
	s.cursor.StreamEpoch = streamEpoch
	s.moveCursor(sequence)
	return applied, gone
}

// Break loses an object now and whenever it comes again, as a broken store would: only for the test that a loadtest finds it.
func (s *Store) Break(key wire.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = key
	s.remove(key)
}
