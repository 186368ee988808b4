// Package index holds the objects of a store in memory: the latest record of each key, the cursor and the revision, and the
// newest events for watchers. It answers every read and does no I/O. Its owner passes it changes that are already durable.
package index

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store/record"
)

// Config holds the limits and the gauges of an index. All fields are required.
type Config struct {
	// Window is the number of events kept for watchers, WindowBytes the limit of their objects' bytes.
	Window, WindowBytes int
	// Objects and Bytes follow the live objects and the bytes of their JSON.
	Objects, Bytes prometheus.Gauge
}

// Index holds the records of one store. Create it with New. It may be used concurrently.
type Index struct {
	cfg Config

	mu sync.RWMutex // guards all fields below
	// records holds live objects, objects deleted here, and tombstones ahead of the cursor.
	records map[wire.Key]*record.Record
	// kinds indexes the live objects of each resource.
	kinds map[resourceKind]map[wire.Key]*record.Record
	// ahead holds the keys of the tombstones that the cursor has not passed.
	ahead    map[wire.Key]struct{}
	cursor   wire.Cursor
	revision uint64
	events   eventWindow
	watchers map[*Watcher]struct{}
}

// resourceKind is a resource of Kubernetes.
type resourceKind struct{ group, resource string }

func kindOf(k wire.Key) resourceKind { return resourceKind{k.Group, k.Resource} }

// New returns an empty index.
func New(cfg Config) *Index {
	return &Index{
		cfg:      cfg,
		records:  map[wire.Key]*record.Record{},
		kinds:    map[resourceKind]map[wire.Key]*record.Record{},
		ahead:    map[wire.Key]struct{}{},
		watchers: map[*Watcher]struct{}{},
	}
}

// Load fills an index with the changes that were found at start, as of cursor, which decides which tombstones still matter.
// They are no events: a watcher may start at the revision end, not before.
func (x *Index) Load(cursor wire.Cursor, changes []record.Change, end uint64) {
	x.cfg.Objects.Set(0)
	x.cfg.Bytes.Set(0)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cursor = cursor
	for _, c := range changes {
		x.applyChange(c)
	}
	x.revision, x.events = end, eventWindow{startRevision: end}
}

// ResetCursor replaces the cursor and keeps the tombstones ahead of it.
func (x *Index) ResetCursor(cursor wire.Cursor) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cursor = cursor
}

// Apply makes durable changes visible to readers and watchers, all at the same moment.
func (x *Index) Apply(changes []record.Change) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range changes {
		x.applyChange(c)
	}
}

// Lookup returns the record of a key, in whatever state; nil for none.
func (x *Index) Lookup(key wire.Key) *record.Record {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.records[key]
}

// Select returns the records that match, in any order, with the revision and the cursor of the same moment.
func (x *Index) Select(matches func(*record.Record) bool) (list []*record.Record, revision uint64, cursor wire.Cursor) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, r := range x.records {
		if matches(r) {
			list = append(list, r)
		}
	}
	return list, x.revision, x.cursor
}

// List returns the objects of a resource in a namespace (all for ""), sorted by namespace and name, and the revision.
func (x *Index) List(group, resource, namespace string) ([]record.Entry, uint64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var list []record.Entry
	for key, r := range x.kinds[resourceKind{group, resource}] {
		if namespace == "" || key.Namespace == namespace {
			list = append(list, r.Entry)
		}
	}
	slices.SortFunc(list, record.CompareEntries)
	return list, x.revision
}

// ListState returns every object in a state, sorted by resource, namespace and name, and the revision.
func (x *Index) ListState(state record.State) ([]record.Entry, uint64) {
	records, revision, _ := x.Select(func(r *record.Record) bool { return r.State == state })
	var list []record.Entry
	for _, r := range records {
		list = append(list, r.Entry)
	}
	slices.SortFunc(list, record.CompareEntries)
	return list, revision
}

// Revision returns the newest revision; every event up to it has been handed to the watchers' window.
func (x *Index) Revision() uint64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.revision
}

// Cursor returns the position in the hub's stream that the records cover.
func (x *Index) Cursor() wire.Cursor {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.cursor
}

// Sums recomputes the sums over all records and over their names.
func (x *Index) Sums() (sum, names uint64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, r := range x.records {
		sum += r.ChecksumTerm()
		names += r.NameTerm()
	}
	return sum, names
}

// applyChange makes one durable change visible to readers and watchers. The caller holds mu.
func (x *Index) applyChange(c record.Change) {
	x.revision = c.Revision
	if c.Record != nil {
		c.Record.Revision = c.Revision
		x.applyRecord(c.Record)
	}
	if c.Cursor != nil {
		x.moveCursor(*c.Cursor)
	}
}

// moveCursor sets the cursor and drops the tombstones that it has passed. The caller holds mu.
func (x *Index) moveCursor(cursor wire.Cursor) {
	x.cursor = cursor
	for key := range x.ahead {
		if r := x.records[key]; r == nil || r.State != record.Tombstone || x.isPassed(r) {
			x.dropTombstone(key, r)
		}
	}
}

// isPassed reports whether the cursor has passed the tombstone, so that no older message can arrive.
func (x *Index) isPassed(r *record.Record) bool {
	return r.StreamEpoch != x.cursor.StreamEpoch || r.LastRemoteSeq <= x.cursor.Sequence
}

func (x *Index) dropTombstone(key wire.Key, r *record.Record) {
	delete(x.ahead, key)
	if r != nil && r.State == record.Tombstone {
		delete(x.records, key)
	}
}

func (x *Index) applyRecord(r *record.Record) {
	key, old := r.Key, x.records[r.Key]
	var prev *record.Entry
	if old != nil && old.State == record.Live {
		prev = &old.Entry
		x.cfg.Objects.Dec()
		x.cfg.Bytes.Sub(float64(len(old.Object)))
	}
	x.records[key] = r
	if r.State == record.Live {
		if x.kinds[kindOf(key)] == nil {
			x.kinds[kindOf(key)] = map[wire.Key]*record.Record{}
		}
		x.kinds[kindOf(key)][key] = r
		x.cfg.Objects.Inc()
		x.cfg.Bytes.Add(float64(len(r.Object)))
		e := &Event{Type: Added, Entry: r.Entry, Prev: prev}
		if prev != nil {
			e.Type = Modified
		}
		x.publishEvent(e)
		return
	}
	delete(x.kinds[kindOf(key)], key)
	if r.State == record.Tombstone {
		if x.isPassed(r) {
			delete(x.records, key)
		} else {
			x.ahead[key] = struct{}{}
		}
	}
	if prev != nil {
		last := *prev
		last.Revision = r.Revision
		x.publishEvent(&Event{Type: Deleted, Entry: last, Prev: prev})
	}
}
