package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
)

var (
	// ErrNotFound reports that the store does not hold the object. Until the first attach that is no proof of absence.
	ErrNotFound = errors.New("object not found")
	// ErrConflict reports that the object is not in the state the writer assumed: another revision, another UID, or deleted here.
	ErrConflict = errors.New("object changed")
	// ErrGone reports that the requested events are no longer kept; list again and watch from there.
	ErrGone = errors.New("events too old")
	// ErrInvalid reports that the bytes are not a JSON object with metadata.
	ErrInvalid = errors.New("invalid object")
	// ErrFull reports that the bucket's size limit or the disk refuses the write.
	ErrFull = errors.New("store is full")
)

const (
	// defaultWindow is how many events a watcher may lag: a full attach of a large node (1,000 objects) a few times over.
	defaultWindow = 4096
	// defaultWindowBytes limits the old objects that the window keeps in memory, for gateways with 256 MB of memory.
	defaultWindowBytes = 8 << 20
	// defaultSyncTimeout is far above what 256 records need on a worn eMMC card (about a second).
	defaultSyncTimeout = 20 * time.Second
	// defaultTombstoneTTL is how long a delete marker stays readable by operators and by a reopened store.
	defaultTombstoneTTL = time.Hour
)

// Config holds the options of a store. The zero Config works.
type Config struct {
	// MaxBytes limits the bucket on disk; 0 is no limit. A write beyond it gets ErrFull.
	MaxBytes int64
	// Merge joins the stored object with a newer one from the cloud, called by Apply and Replace when both have the same
	// UID, or the stored one has none yet. It must not change its arguments. Its error keeps the cloud's object.
	// nil keeps the cloud's object always.
	Merge func(key wire.Key, local, desired []byte) ([]byte, error)
	// Window is the number of events kept for watchers; 0 is 4096.
	Window int
	// WindowBytes limits the object bytes of those events; 0 is 8 MiB.
	WindowBytes int
	// TombstoneTTL is how long delete markers stay on disk, at least 1 s; 0 is one hour.
	TombstoneTTL time.Duration
	// SyncTimeout is how long one commit may take before its outcome counts as unknown; 0 is 20 s.
	SyncTimeout time.Duration
	// HighWaterFile is a file outside JetStream's folder that records the newest revision. With it, a bucket that lost its
	// newest records to a bad disk is not taken for whole. "" for none. The folder must exist.
	HighWaterFile string
	// LastGoodFile is a file outside JetStream's folder for the last-good copy. SaveLastGood writes it, and damaged records
	// are restored from it. "" for none. The folder must exist. Replace removes the file.
	LastGoodFile string
	// Sealer encrypts the objects that IsSecret selects before they are written, to the bucket and to the copy; nil writes
	// all as plain text. Records that an earlier store wrote as plain text, or sealed with another key, are sealed by Open,
	// given a LastGoodFile. A record that cannot be opened counts as damaged.
	Sealer Sealer
	// IsSecret selects the objects that are sealed; nil selects all.
	IsSecret func(wire.Key) bool
	// CheckWritable returns the reason why writes are impossible now, such as a full disk. It must not block. A write then
	// gets ErrFull at once instead of after SyncTimeout. nil never refuses.
	CheckWritable func() error
	// LowSpace reports that little disk space is left. It must not block. An older store is then sealed by a later Open. nil means never.
	LowSpace func() bool
	// Metrics registers the store's metrics; nil drops them. A node that shares a registry wraps it with its own labels.
	Metrics prometheus.Registerer
}

func (c Config) withDefaults() Config {
	if c.Window <= 0 {
		c.Window = defaultWindow
	}
	if c.WindowBytes <= 0 {
		c.WindowBytes = defaultWindowBytes
	}
	if c.TombstoneTTL < time.Second {
		c.TombstoneTTL = defaultTombstoneTTL
	}
	if c.SyncTimeout <= 0 {
		c.SyncTimeout = defaultSyncTimeout
	}
	return c
}

// Entry is one stored object.
type Entry struct {
	Key wire.Key
	// UID is the object's UID; "" if it was written here before the cloud assigned one.
	UID string
	// Version is the cloud's resourceVersion that this state is based on; "" for an object that only this node knows.
	Version string
	// ClusterEpoch is the Kubernetes history that Version belongs to.
	ClusterEpoch string
	// Sequence is the hub stream's sequence of the last message for it; 0 if the object did not come from the hub.
	Sequence uint64
	// Revision is the bucket's sequence of this state: the local resourceVersion.
	Revision uint64
	// LastGood is not zero for an object whose newest state was damaged: this entry is an older state, from a copy of that time.
	LastGood time.Time
	// Object is the object's JSON as it was written, including metadata.resourceVersion. Read only.
	Object []byte
}

// Store holds the objects of one node. Create it with Open. It needs no Close: it holds no goroutine and no file.
type Store struct {
	cfg     Config
	js      jetstream.JetStream
	log     *zap.Logger
	metrics *storeMetrics

	// remoteWriter and writer are locks that can be acquired with a context and may be held across I/O: one token each.
	// remoteWriter admits one Apply or Replace, writer one commit; remoteWriter is acquired first.
	remoteWriter chan struct{}
	writer       chan struct{}
	// dirty: a commit's outcome is unknown, so memory must be compared with the bucket first. Guarded by writer.
	dirty bool
	// sequenceRefused: that commit was refused for its sequence. Guarded by writer.
	sequenceRefused bool
	// suspectKeys are the keys of the commit whose outcome is unknown. Guarded by writer.
	suspectKeys []wire.Key
	// recordSum is the sum over all records; see record.checksumTerm. Guarded by writer.
	recordSum uint64
	// nameSum is the sum over all names; see record.nameTerm. Guarded by writer.
	nameSum uint64
	// neverPlain: the bucket has never held a secret as plain text. Guarded by writer.
	neverPlain bool
	// lastGoodRevision is the revision of the last copy that this process wrote. Guarded by writer.
	lastGoodRevision uint64

	mu sync.RWMutex // guards all fields below; never held across I/O
	// records holds live objects, objects deleted here, and tombstones ahead of the cursor.
	records map[wire.Key]*record
	// kinds indexes the live objects of each resource.
	kinds map[resourceKind]map[wire.Key]*record
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

// Open ensures the bucket on js, reads and checks all of it, and returns a store that can serve at once. Damage does not
// make Open fail; see the package comment.
func Open(ctx context.Context, js jetstream.JetStream, cfg Config, log *zap.Logger) (*Store, error) {
	s := &Store{
		cfg:          cfg.withDefaults(),
		js:           js,
		log:          log.Named("store"),
		remoteWriter: make(chan struct{}, 1),
		writer:       make(chan struct{}, 1),
		records:      map[wire.Key]*record{},
		kinds:        map[resourceKind]map[wire.Key]*record{},
		ahead:        map[wire.Key]struct{}{},
		watchers:     map[*Watcher]struct{}{},
	}
	var err error
	if s.metrics, err = newMetrics(cfg.Metrics); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	s.removePartialCopies()
	if err := s.loadBucket(ctx); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	return s, nil
}

// Get returns one object, or ErrNotFound.
func (s *Store) Get(key wire.Key) (Entry, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if r := s.records[key]; r != nil && r.state == stateLive {
		return r.Entry, nil
	}
	return Entry{}, fmt.Errorf("%s: %w", key.Human(), ErrNotFound)
}

// Holds reports whether the store has a message's object from the same position of the stream.
func (s *Store) Holds(m wire.Message) bool {
	e, err := s.Get(m.Key)
	return err == nil && e.Sequence == m.Sequence && e.UID == m.UID && e.Version == m.Version && e.ClusterEpoch == m.ClusterEpoch
}

// List returns the objects of a resource in a namespace (all for ""), sorted by namespace and name. It also returns the
// revision at which exactly these existed: a Watch from it misses no event.
func (s *Store) List(group, resource, namespace string) ([]Entry, uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var list []Entry
	for key, r := range s.kinds[resourceKind{group, resource}] {
		if namespace == "" || key.Namespace == namespace {
			list = append(list, r.Entry)
		}
	}
	slices.SortFunc(list, compareEntries)
	return list, s.revision
}

// All returns every object, sorted by resource, namespace and name, and the revision.
func (s *Store) All() ([]Entry, uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var list []Entry
	for _, r := range s.records {
		if r.state == stateLive {
			list = append(list, r.Entry)
		}
	}
	slices.SortFunc(list, compareEntries)
	return list, s.revision
}

// DeletedHere returns the objects deleted at the node whose deletion the cloud has not confirmed, without Objects.
// Reporting these again at an attach repairs a delete report that was lost or refused.
func (s *Store) DeletedHere() []Entry {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var list []Entry
	for _, r := range s.records {
		if r.state == stateGone {
			list = append(list, r.Entry)
		}
	}
	slices.SortFunc(list, compareEntries)
	return list
}

// Revision returns the newest revision; every event up to it has been handed to the watchers' window.
func (s *Store) Revision() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.revision
}

// Cursor returns the store's position in the hub's stream. StreamEpoch "" means that the store has not attached yet, or
// found damage and needs a full attach.
func (s *Store) Cursor() wire.Cursor {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.cursor
}

func compareEntries(a, b Entry) int {
	return compareKeys(a.Key, b.Key)
}

func compareKeys(a, b wire.Key) int {
	for _, c := range []int{
		strings.Compare(a.Group, b.Group),
		strings.Compare(a.Resource, b.Resource),
		strings.Compare(a.Namespace, b.Namespace),
	} {
		if c != 0 {
			return c
		}
	}
	return strings.Compare(a.Name, b.Name)
}
