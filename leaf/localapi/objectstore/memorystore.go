package objectstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

const (
	// maxMemoryObjects limits the objects of one resource in memory. A kubelet holds one lease; its recorder patches events
	// of the last minutes, and a burst of 110 starting pods (the kubelet's own limit) makes about three each.
	maxMemoryObjects = 512
	// memoryWatchBuffer is how many events a watcher of such objects may lag; then it is closed and lists again.
	memoryWatchBuffer = 64
)

// Memory holds the objects of one resource until the process ends. New objects replace the oldest.
type Memory struct {
	resource string
	mu       sync.Mutex // guards all fields below
	entries  map[wire.Key]store.Entry
	order    []wire.Key // oldest write first
	revision uint64
	watches  map[*memoryWatch]struct{}
}

// NewMemory starts its revisions at the present time: they must not repeat those of an earlier process.
func NewMemory(resource string) *Memory {
	return &Memory{
		resource: resource,
		entries:  map[wire.Key]store.Entry{},
		revision: uint64(time.Now().UnixMilli()),
		watches:  map[*memoryWatch]struct{}{},
	}
}

// Get implements Store.
func (m *Memory) Get(key wire.Key) (store.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e, ok := m.entries[key]; ok {
		return e, nil
	}
	return store.Entry{}, fmt.Errorf("%s: %w", key.Human(), store.ErrNotFound)
}

// List implements Store.
func (m *Memory) List(_, _, namespace string) ([]store.Entry, uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []store.Entry
	for key, e := range m.entries {
		if namespace == "" || key.Namespace == namespace {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b store.Entry) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	return list, m.revision
}

// Revision implements Store.
func (m *Memory) Revision() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.revision
}

// Watch keeps no history: it starts at the present revision, or returns that earlier events are gone.
func (m *Memory) Watch(_, _, namespace string, after uint64) (Watch, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if after != m.revision {
		return nil, store.ErrGone
	}
	f := &memoryWatch{store: m, namespace: namespace, events: make(chan store.Event, memoryWatchBuffer)}
	m.watches[f] = struct{}{}
	return f, nil
}

// Put implements Store.
func (m *Memory) Put(_ context.Context, key wire.Key, object []byte, ifRevision *uint64) (store.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	last, exists := m.entries[key]
	if ifRevision != nil && *ifRevision != last.Revision {
		return store.Entry{}, fmt.Errorf("%s: %w", key.Human(), store.ErrConflict)
	}
	m.revision++
	e := store.Entry{Key: key, Revision: m.revision, Object: object}
	m.entries[key] = e
	if exists {
		m.order = slices.DeleteFunc(m.order, func(k wire.Key) bool { return k == key })
		m.broadcastEvent(store.Event{Type: store.Modified, Entry: e, Prev: &last})
	} else {
		m.broadcastEvent(store.Event{Type: store.Added, Entry: e})
	}
	m.order = append(m.order, key)
	if len(m.order) > maxMemoryObjects {
		m.removeEntry(m.order[0])
	}
	return e, nil
}

// Delete implements Store.
func (m *Memory) Delete(_ context.Context, key wire.Key, _ string, ifRevision *uint64) (store.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	last, ok := m.entries[key]
	switch {
	case !ok:
		return store.Entry{}, fmt.Errorf("%s: %w", key.Human(), store.ErrNotFound)
	case ifRevision != nil && *ifRevision != last.Revision:
		return store.Entry{}, fmt.Errorf("%s: %w", key.Human(), store.ErrConflict)
	}
	return m.removeEntry(key), nil
}

// removeEntry removes an object. The caller holds mu.
func (m *Memory) removeEntry(key wire.Key) store.Entry {
	last := m.entries[key]
	delete(m.entries, key)
	m.order = slices.DeleteFunc(m.order, func(k wire.Key) bool { return k == key })
	m.revision++
	e := last
	e.Revision = m.revision
	m.broadcastEvent(store.Event{Type: store.Deleted, Entry: e, Prev: &last})
	return e
}

// broadcastEvent sends an event to all watches and never blocks. The caller holds mu.
func (m *Memory) broadcastEvent(e store.Event) {
	for f := range m.watches {
		if f.namespace != "" && f.namespace != e.Entry.Key.Namespace {
			continue
		}
		select {
		case f.events <- e:
		default:
			delete(m.watches, f)
			close(f.events)
		}
	}
}

type memoryWatch struct {
	store     *Memory
	namespace string
	events    chan store.Event // closed with store.mu held, when the watch is removed from store.watches
}

func (f *memoryWatch) Next(ctx context.Context) (store.Event, error) {
	select {
	case e, ok := <-f.events:
		return f.eventOrGone(e, ok)
	default:
	}
	select {
	case e, ok := <-f.events:
		return f.eventOrGone(e, ok)
	case <-ctx.Done():
		return store.Event{}, ctx.Err()
	}
}

func (f *memoryWatch) eventOrGone(e store.Event, ok bool) (store.Event, error) {
	if !ok {
		return store.Event{}, store.ErrGone
	}
	return e, nil
}

func (f *memoryWatch) Stop() {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	if _, ok := f.store.watches[f]; ok {
		delete(f.store.watches, f)
		close(f.events)
	}
}
