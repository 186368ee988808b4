package streamstest

import (
	"context"
	"maps"
	"sync"

	"github.com/frond-edge/frond/api/wire"
)

// ObjectCount returns the number of objects that are held.
func (s *MemoryStore) ObjectCount() int {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return len(s.Objects)
}

// ObjectOf returns the object of a key, "" without one.
func (s *MemoryStore) ObjectOf(name string) string {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return string(s.Objects[ConfigMapKey(name)].Object)
}

// applyMessage applies one message; mu is held.
func (s *MemoryStore) applyMessage(m wire.Message) {
	s.Applied++
	if m.Op == wire.Delete {
		delete(s.Objects, m.Key)
		return
	}
	s.Objects[m.Key] = m
}

// notifyChange calls onChange; mu is held.
func (s *MemoryStore) notifyChange() {
	if s.OnChange != nil {
		s.OnChange()
	}
}

// Replace implements deliver.Store.
func (s *MemoryStore) Replace(_ context.Context, messages []wire.Message, epoch string, sequence uint64) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	old := maps.Clone(s.Objects)
	clear(s.Objects)
	for _, m := range messages {
		if m.Op == "" {
			if kept, ok := old[m.Key]; ok {
				s.Objects[m.Key] = kept
			}
			continue
		}
		s.applyMessage(m)
	}
	s.Replaced++
	s.At.StreamEpoch, s.At.Sequence = epoch, sequence
	s.notifyChange()
	return nil
}

// Apply implements deliver.Store.
func (s *MemoryStore) Apply(_ context.Context, messages []wire.Message, sequence uint64) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if err := s.NextError; err != nil {
		s.NextError = nil
		return err
	}
	for _, m := range messages {
		s.applyMessage(m)
	}
	s.At.Sequence = max(s.At.Sequence, sequence)
	s.notifyChange()
	return nil
}

// Cursor implements deliver.Store.
func (s *MemoryStore) Cursor() wire.Cursor {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.At
}

// NewMemoryStore returns an empty store.
func NewMemoryStore() *MemoryStore {
	return &MemoryStore{At: wire.Cursor{StoreEpoch: "s1"}, Objects: map[wire.Key]wire.Message{}}
}

// MemoryStore is a deliver.Store in memory.
type MemoryStore struct {
	Mu        sync.Mutex
	At        wire.Cursor               // guarded by mu
	Objects   map[wire.Key]wire.Message // guarded by mu
	Applied   int                       // guarded by mu
	Replaced  int                       // guarded by mu
	NextError error                     // guarded by mu; returned once
	OnChange  func()                    // called with mu held after each change; may be nil
}

// Holds is false: each payload is sent.
func (s *MemoryStore) Holds(wire.Message) bool { return false }
