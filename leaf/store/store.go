package store

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store/bucket"
	"github.com/frond-edge/frond/leaf/store/index"
	"github.com/frond-edge/frond/leaf/store/journal"
	"github.com/frond-edge/frond/leaf/store/lastgood"
	"github.com/frond-edge/frond/leaf/store/record"
	"github.com/frond-edge/frond/leaf/store/recovery"
	"github.com/frond-edge/frond/leaf/store/writeplan"
)

var (
	// ErrNotFound reports that the store does not hold the object. Until the first attach that is no proof of absence.
	ErrNotFound = writeplan.ErrNotFound
	// ErrConflict reports that the object is not in the state the writer assumed: another revision, another UID, or deleted here.
	ErrConflict = writeplan.ErrConflict
	// ErrGone reports that the requested events are no longer kept; list again and watch from there.
	ErrGone = index.ErrGone
	// ErrInvalid reports that the bytes are not a JSON object with metadata.
	ErrInvalid = record.ErrInvalid
	// ErrFull reports that the bucket's size limit or the disk refuses the write.
	ErrFull = bucket.ErrFull
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

// The types of the store's parts that its methods take and return.
type (
	// Entry is one stored object.
	Entry = record.Entry
	// Sealer encrypts objects that must not be on disk as plain text.
	Sealer = record.Sealer
	// Event is one change of an object.
	Event = index.Event
	// EventType is the kind of a change; the values are those of Kubernetes' watch events.
	EventType = index.EventType
	// Watcher delivers the events of one Watch, in order and without gaps.
	Watcher = index.Watcher
)

// The event types.
const (
	Added    = index.Added
	Modified = index.Modified
	Deleted  = index.Deleted
)

// Store holds the objects of one node. Create it with Open. It holds no goroutine, and one file, until Close.
type Store struct {
	cfg     Config
	log     *zap.Logger
	metrics *storeMetrics
	// index answers every read; journal makes every write durable and then visible there.
	index   *index.Index
	journal *journal.Journal
	// lastGood is used only while nothing is committed.
	lastGood *lastgood.File
	// remoteWriter admits one Apply or Replace. It is acquired before the journal's lock.
	remoteWriter journal.Token
}

// Open ensures the bucket on js, reads and checks all of it, and returns a store that can serve at once. Damage does not
// make Open fail; see the package comment.
func Open(ctx context.Context, js jetstream.JetStream, cfg Config, log *zap.Logger) (*Store, error) {
	cfg, log = cfg.withDefaults(), log.Named("store")
	metrics, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	sealing := record.Sealing{Sealer: cfg.Sealer, Secret: cfg.IsSecret}
	parts := recovery.Parts{
		Bucket: bucket.New(bucket.Config{MaxBytes: cfg.MaxBytes, TombstoneTTL: cfg.TombstoneTTL, Sealing: sealing}, js, log),
		Index:  index.New(index.Config{Window: cfg.Window, WindowBytes: cfg.WindowBytes, Objects: metrics.objects, Bytes: metrics.bytes}),
		Mark:   journal.NewMarkFile(cfg.HighWaterFile, log),
		Copy:   lastgood.New(cfg.LastGoodFile, sealing, log),
	}
	parts.Journal = journal.New(journal.Config{
		SyncTimeout: cfg.SyncTimeout, CheckWritable: cfg.CheckWritable,
		SyncSeconds: metrics.syncSeconds, Quarantined: metrics.quarantined, Rebuilt: metrics.rebuilt,
	}, parts.Bucket, parts.Index, parts.Mark, log)
	err = recovery.Open(ctx, recovery.Config{
		Sealed: cfg.Sealer != nil, CheckWritable: cfg.CheckWritable, LowSpace: cfg.LowSpace,
		Damaged: metrics.damaged, Quarantined: metrics.quarantined, Restored: metrics.restored,
	}, parts, log)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	return &Store{
		cfg: cfg, log: log, metrics: metrics, index: parts.Index, journal: parts.Journal, lastGood: parts.Copy, remoteWriter: journal.NewToken(),
	}, nil
}

// Close closes the file of the high-water mark, after the commit in progress. Nobody may write any more; reads still work.
func (s *Store) Close() error {
	if err := s.journal.Close(); err != nil {
		return fmt.Errorf("close the mark of the store: %w", err)
	}
	return nil
}

// Get returns one object, or ErrNotFound.
func (s *Store) Get(key wire.Key) (Entry, error) {
	if r := s.index.Lookup(key); r != nil && r.State == record.Live {
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
	return s.index.List(group, resource, namespace)
}

// All returns every object, sorted by resource, namespace and name, and the revision.
func (s *Store) All() ([]Entry, uint64) { return s.index.ListState(record.Live) }

// DeletedHere returns the objects deleted at the node whose deletion the cloud has not confirmed, without Objects.
// Reporting these again at an attach repairs a delete report that was lost or refused.
func (s *Store) DeletedHere() []Entry {
	list, _ := s.index.ListState(record.Gone)
	return list
}

// Inventory summarizes the live objects as the cloud sent them, and lists the objects deleted here whose deletion is not
// confirmed. The cursor is of the same moment; during a large Apply or Replace the objects are ahead of it.
func (s *Store) Inventory() (cursor wire.Cursor, census wire.Inventory, deleted []wire.Key) {
	_, _, cursor = s.index.Select(func(r *record.Record) bool {
		switch {
		case r.State == record.Live && r.Desired:
			census.Add(r.Key, r.UID, r.Version)
		case r.State == record.Gone:
			deleted = append(deleted, r.Key)
		}
		return false
	})
	return cursor, census, deleted
}

// Revision returns the newest revision; every event up to it has been handed to the watchers' window.
func (s *Store) Revision() uint64 { return s.index.Revision() }

// Cursor returns the store's position in the hub's stream. StreamEpoch "" means that the store has not attached yet, or
// found damage and needs a full attach.
func (s *Store) Cursor() wire.Cursor { return s.index.Cursor() }

// Watch returns the events of a resource in a namespace (all for "") whose revision is above after: exactly those that
// follow a List with that revision. It returns ErrGone if the store does not keep events that far back, or never reached
// that revision. The caller must Stop the watcher.
func (s *Store) Watch(group, resource, namespace string, after uint64) (*Watcher, error) {
	return s.index.Watch(group, resource, namespace, after)
}
