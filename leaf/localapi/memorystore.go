package localapi

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
	// memoryObjects bounds the objects of one resource in memory. A kubelet holds one lease; its recorder patches events
	// of the last minutes, and a burst of 110 pods (the kubelet's own limit) starting makes about three each.
	memoryObjects = 512
	// memoryLag is how many events a watcher of such objects may lag; then it is closed and lists again.
	memoryLag = 64
)

// memory keeps the objects of one resource until the process ends, the oldest making room for new ones.
type memory struct {
	resource string
	mu       sync.Mutex // guards all below
	entries  map[wire.Key]store.Entry
	order    []wire.Key // oldest write first
	revision uint64
	feeds    map[*memoryFeed]struct{}
}

// newMemory starts counting at the present time: revisions of a former process must not look like ours.
func newMemory(resource string) *memory {
	return &memory{
		resource: resource,
		entries:  map[wire.Key]store.Entry{},
		revision: uint64(time.Now().UnixMilli()),
		feeds:    map[*memoryFeed]struct{}{},
	}
}

func (m *memory) Get(key wire.Key) (store.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e, ok := m.entries[key]; ok {
		return e, nil
	}
	return store.Entry{}, fmt.Errorf("%s: %w", key.Human(), store.ErrNotFound)
}

func (m *memory) List(_, _, namespace string) ([]store.Entry, uint64) {
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

func (m *memory) Revision() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.revision
}

// Watch keeps no history: it starts at the present, or says that the past is gone.
func (m *memory) Watch(_, _, namespace string, after uint64) (feed, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if after != m.revision {
		return nil, store.ErrGone
	}
	f := &memoryFeed{from: m, namespace: namespace, events: make(chan store.Event, memoryLag)}
	m.feeds[f] = struct{}{}
	return f, nil
}

func (m *memory) Put(_ context.Context, key wire.Key, object []byte, ifRevision *uint64) (store.Entry, error) {
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
		m.tell(store.Event{Type: store.Modified, Entry: e, Prev: &last})
	} else {
		m.tell(store.Event{Type: store.Added, Entry: e})
	}
	m.order = append(m.order, key)
	if len(m.order) > memoryObjects {
		m.remove(m.order[0])
	}
	return e, nil
}

func (m *memory) Delete(_ context.Context, key wire.Key, _ string, ifRevision *uint64) (store.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	last, ok := m.entries[key]
	switch {
	case !ok:
		return store.Entry{}, fmt.Errorf("%s: %w", key.Human(), store.ErrNotFound)
	case ifRevision != nil && *ifRevision != last.Revision:
		return store.Entry{}, fmt.Errorf("%s: %w", key.Human(), store.ErrConflict)
	}
	return m.remove(key), nil
}

// remove is called with mu held.
func (m *memory) remove(key wire.Key) store.Entry {
	last := m.entries[key]
	delete(m.entries, key)
	m.order = slices.DeleteFunc(m.order, func(k wire.Key) bool { return k == key })
	m.revision++
	e := last
	e.Revision = m.revision
	m.tell(store.Event{Type: store.Deleted, Entry: e, Prev: &last})
	return e
}

// tell is called with mu held; it never blocks.
func (m *memory) tell(e store.Event) {
	for f := range m.feeds {
		if f.namespace != "" && f.namespace != e.Entry.Key.Namespace {
			continue
		}
		select {
		case f.events <- e:
		default:
			delete(m.feeds, f)
			close(f.events)
		}
	}
}

type memoryFeed struct {
	from      *memory
	namespace string
	events    chan store.Event // closed with from.mu held, when the feed leaves from.feeds
}

func (f *memoryFeed) Next(ctx context.Context) (store.Event, error) {
	select {
	case e, ok := <-f.events:
		return f.got(e, ok)
	default:
	}
	select {
	case e, ok := <-f.events:
		return f.got(e, ok)
	case <-ctx.Done():
		return store.Event{}, ctx.Err()
	}
}

func (f *memoryFeed) got(e store.Event, ok bool) (store.Event, error) {
	if !ok {
		return store.Event{}, store.ErrGone
	}
	return e, nil
}

func (f *memoryFeed) Stop() {
	f.from.mu.Lock()
	defer f.from.mu.Unlock()
	if _, ok := f.from.feeds[f]; ok {
		delete(f.from.feeds, f)
		close(f.events)
	}
}
