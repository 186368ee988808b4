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
	// ErrNotFound says that the store does not hold the object. Until the first attach that is no proof of absence.
	ErrNotFound = errors.New("object not found")
	// ErrConflict says that the object is not as the writer assumed: another revision, another UID, or deleted here.
	ErrConflict = errors.New("object changed")
	// ErrGone says that the events asked for are no longer kept; list again and watch from there.
	ErrGone = errors.New("events too old")
	// ErrInvalid says that the bytes are not a JSON object with metadata.
	ErrInvalid = errors.New("invalid object")
	// ErrFull says that the bucket's size limit or the disk refuses the write.
	ErrFull = errors.New("store is full")
)

const (
	// defaultWindow is what a watcher may lag: a full attach of a large node (1,000 objects) a few times over.
	defaultWindow = 4096
	// defaultWindowBytes bounds the old objects that the window keeps alive, on gateways with 256 MB of memory.
	defaultWindowBytes = 8 << 20
	// defaultSyncTimeout is far above what 256 records need on a worn eMMC card (about a second).
	defaultSyncTimeout = 20 * time.Second
	// defaultTombstoneTTL is how long a delete marker stays readable by people and by a reopened store.
	defaultTombstoneTTL = time.Hour
)

// Config is what an owner may choose. The zero Config works.
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
	// HighWaterFile is a file outside JetStream's folder that remembers the newest revision, so that a bucket which lost its newest
	// records to a bad disk is not taken for whole; "" for none. The folder must exist.
	HighWaterFile string
	// LastGoodFile is a file outside JetStream's folder for the last-good copy that SaveLastGood writes, and that damaged records are
	// taken from; "" for none. The folder must exist. Replace removes the file.
	LastGoodFile string
	// Sealer encrypts what Secret names before it is written, to the bucket and to the copy; nil writes all as it is. What an earlier store
	// has written as plain text, or a Sealer with another key, is sealed at the opening, given a Copy. What cannot be opened is damage.
	Sealer Sealer
	// IsSecret tells which objects are sealed; nil is all of them.
	IsSecret func(wire.Key) bool
	// CheckWritable says why nothing can be written now, such as a full disk, and must not block; a write then gets ErrFull at once, and not after
	// SyncTimeout. nil never refuses.
	CheckWritable func() error
	// LowSpace reports that there is little space left, and must not block: an older store is then sealed at a later opening. nil is never.
	LowSpace func() bool
	// Metrics takes the store's metrics; nil drops them. A node that shares a registry wraps it with its own labels.
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
	// UID is the object's UID; "" if it was written here before the cloud knew it.
	UID string
	// Version is the resourceVersion in the cloud that this state is based on; "" for an object only known here.
	Version string
	// ClusterEpoch is the Kubernetes history that Version belongs to.
	ClusterEpoch string
	// Sequence is the hub stream's sequence of the last message for it; 0 if the object did not come from the hub.
	Sequence uint64
	// Revision is the bucket's sequence of this state: the local resourceVersion.
	Revision uint64
	// LastGood is not zero for an object whose newest state was damaged: this is an older one, from a copy of that time.
	LastGood time.Time
	// Object is the object's JSON as its writer gave it, metadata.resourceVersion included. Read only.
	Object []byte
}

// Store is the objects of one node. Make it with Open; it needs no end: it holds no goroutine and no file.
type Store struct {
	cfg     Config
	js      jetstream.JetStream
	log     *zap.Logger
	metrics *storeMetrics

	// remoteWriter and writer are locks that can be waited for with a context and may be held across I/O: one token each.
	// feed admits one Apply or Replace, writer one commit; feed is taken first.
	remoteWriter chan struct{}
	writer       chan struct{}
	// doubt, held with writer: a commit's outcome is unknown, so memory is to be compared with the bucket first.
	dirty bool
	// refused, held with writer: that commit was refused for its sequence.
	sequenceRefused bool
	// suspects, held with writer, are the keys of the commit that is in doubt.
	suspectKeys []wire.Key
	// recordSum is the sum over all records, held with writer; see record.checksumTerm.
	recordSum uint64
	// nameSum is the sum over all names, held with writer; see record.nameTerm.
	nameSum uint64
	// clean, held with writer, says that the bucket has never held as plain text what is secret.
	neverPlain bool
	// copied, held with writer, is the revision of the last copy that this process made.
	lastGoodRevision uint64

	mu sync.RWMutex // guards all below; never held across I/O
	// records holds live objects, objects deleted here, and tombstones ahead of the cursor.
	records map[wire.Key]*record
	// kinds finds the live objects of one resource.
	kinds map[resourceKind]map[wire.Key]*record
	// ahead names the tombstones that the cursor has not passed.
	ahead    map[wire.Key]struct{}
	cursor   wire.Cursor
	revision uint64
	events   eventWindow
	watchers map[*Watcher]struct{}
}

// resourceKind is a resource of Kubernetes.
type resourceKind struct{ group, resource string }

func kindOf(k wire.Key) resourceKind { return resourceKind{k.Group, k.Resource} }

// Open ensures the bucket on js, reads and checks all of it, and returns a store that serves at once.
// Damage does not fail it; see the package comment.
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

// List returns the objects of a resource in a namespace (all for ""), sorted by namespace and name, and the revision
// at which exactly these existed: Watch from it misses nothing.
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

// DeletedHere returns what was deleted at the node and not yet confirmed by the cloud, without Objects. Reporting
// these again at an attach repairs a delete report that was lost or refused.
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

// Cursor returns how far the store has come with the hub's stream. StreamEpoch "" means that it has not attached yet,
// or found damage and needs a full attach.
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
