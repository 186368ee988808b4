// Package journal commits changes to a store: first to the bucket, synced to disk, then to the index in memory, so that no
// reader sees what a crash may undo. It is the bucket's only writer and repairs what it finds there from memory.
package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/failpoint"
	"github.com/frond-edge/frond/leaf/store/bucket"
	"github.com/frond-edge/frond/leaf/store/index"
	"github.com/frond-edge/frond/leaf/store/record"
	"github.com/frond-edge/frond/leaf/store/writeplan"
)

// maxCommitAttempts is how often a write is planned again after another writer committed first.
const maxCommitAttempts = 3

// Config holds the options of a journal. All fields but CheckWritable are required.
type Config struct {
	// SyncTimeout is how long one commit may take before its outcome counts as unknown.
	SyncTimeout time.Duration
	// CheckWritable returns the reason why writes are impossible now. An Update then gets bucket.ErrFull at once. nil never refuses.
	CheckWritable func() error
	// SyncSeconds, Quarantined and Rebuilt are the journal's metrics.
	SyncSeconds          prometheus.Observer
	Quarantined, Rebuilt prometheus.Counter
}

// Journal writes to one bucket and one index. Create it with New, fill the index, and call Adopt before the first commit.
type Journal struct {
	cfg    Config
	bucket *bucket.Bucket
	index  *index.Index
	mark   *MarkFile
	log    *zap.Logger

	// writer guards all fields below. It may be held across I/O.
	writer Token
	// dirty: a commit's outcome is unknown, so memory must be compared with the bucket first.
	dirty bool
	// sequenceRefused: that commit was refused for its sequence.
	sequenceRefused bool
	// suspectKeys are the keys of the commit whose outcome is unknown.
	suspectKeys []wire.Key
	// state is what the bucket's last message says of the store. While the bucket is rebuilt it has no cursor.
	state bucket.State
	// neverPlain: the bucket has never held a secret as plain text.
	neverPlain bool
}

// New returns a journal of a bucket and an index, which writes a mark after each commit.
func New(cfg Config, b *bucket.Bucket, x *index.Index, mark *MarkFile, log *zap.Logger) *Journal {
	return &Journal{cfg: cfg, bucket: b, index: x, mark: mark, log: log, writer: NewToken(), dirty: true}
}

// Token is a lock that can be acquired with a context and may be held across I/O.
type Token chan struct{}

// NewToken returns a lock that is free.
func NewToken() Token { return make(Token, 1) }

// Acquire waits for the lock, or returns ctx's error.
func (t Token) Acquire(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Release frees the lock.
func (t Token) Release() { <-t }

// Adopt declares that the index equals the bucket. neverPlain: the bucket has never held a secret as plain text.
func (j *Journal) Adopt(neverPlain bool) {
	j.state.Sum, j.state.Names = j.index.Sums()
	j.state.Cursor = j.index.Cursor()
	j.neverPlain, j.dirty = neverPlain, false
}

// Sums returns the sums over all records and over all names. No commit may run meanwhile.
func (j *Journal) Sums() (sum, names uint64) { return j.state.Sum, j.state.Names }

// Close waits until nothing is committed and closes the mark's file. A later commit opens it again.
func (j *Journal) Close() error {
	j.writer <- struct{}{}
	defer j.writer.Release()
	return j.mark.Close()
}

// Exclusive runs do while nothing is committed. clean is false if the outcome of the last commit is unknown.
func (j *Journal) Exclusive(ctx context.Context, do func(clean bool) error) error {
	if err := j.writer.Acquire(ctx); err != nil {
		return err
	}
	defer j.writer.Release()
	return do(!j.dirty)
}

// Update runs decide while nothing is committed, and commits the changes that it returns. decide sees an index equal to the
// bucket. It may be called again if another writer committed first.
func (j *Journal) Update(ctx context.Context, decide func() ([]record.Change, error)) error {
	if err := j.writer.Acquire(ctx); err != nil {
		return err
	}
	defer j.writer.Release()
	if j.cfg.CheckWritable != nil {
		if err := j.cfg.CheckWritable(); err != nil {
			return fmt.Errorf("%w: %w", bucket.ErrFull, err)
		}
	}
	for attempt := 1; ; attempt++ {
		err := j.decideAndCommit(ctx, decide)
		if !errors.Is(err, bucket.ErrForeignWrite) || attempt == maxCommitAttempts {
			return err
		}
		j.log.Warn("bucket changed by another writer, reading it again", zap.Int("attempt", attempt))
	}
}

// decideAndCommit makes one attempt of an Update. The caller holds writer.
func (j *Journal) decideAndCommit(ctx context.Context, decide func() ([]record.Change, error)) error {
	if j.dirty {
		if err := j.catchUp(ctx); err != nil {
			return fmt.Errorf("catch up with the bucket: %w", err)
		}
	}
	changes, err := decide()
	if err != nil || len(changes) == 0 {
		return err
	}
	return j.commit(ctx, changes)
}

// CommitAll commits changes in chunks. Only the recovery of a store that nobody uses yet may call it.
func (j *Journal) CommitAll(ctx context.Context, changes []record.Change) error {
	for len(changes) > 0 {
		n := min(len(changes), writeplan.ChunkLength)
		if err := j.commit(ctx, changes[:n:n]); err != nil {
			return err
		}
		changes = changes[n:]
	}
	return nil
}

// commit writes changes in order, waits until they are synced, and applies them for readers. The caller holds writer.
// Cancelling ctx does not interrupt a commit: once it has started, commit waits for its outcome.
func (j *Journal) commit(ctx context.Context, changes []record.Change) error {
	if cursor := j.cursorAfter(changes); changes[len(changes)-1].Expires() && cursor.StoreEpoch != "" {
		// The last message of a commit proves that no earlier record was lost, and is the only one with the newest cursor. It must
		// not expire.
		changes = append(changes, record.Change{Cursor: &cursor})
	}
	messages, state, err := j.encodeCommit(changes)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), j.cfg.SyncTimeout)
	defer cancel()
	base, begun := j.index.Revision(), time.Now()
	j.dirty = true
	failpoint.At("save.begun")
	if err := j.bucket.Publish(ctx, base, messages); err != nil {
		j.sequenceRefused = errors.Is(err, bucket.ErrForeignWrite)
		j.suspectKeys = j.suspectKeys[:0]
		for _, c := range changes {
			if c.Record != nil {
				j.suspectKeys = append(j.suspectKeys, c.Record.Key)
			}
		}
		return fmt.Errorf("write to the bucket: %w", err)
	}
	failpoint.At("save.synced")
	j.dirty, j.sequenceRefused, j.suspectKeys = false, false, nil
	j.state = state
	j.cfg.SyncSeconds.Observe(time.Since(begun).Seconds())
	for i := range changes {
		changes[i].Revision = base + uint64(i) + 1
	}
	j.index.Apply(changes)
	j.mark.Save(Mark{Revision: base + uint64(len(changes)), Sum: state.Sum, Names: state.Names, Cursor: j.index.Cursor()})
	return nil
}

// cursorAfter returns the cursor after changes.
func (j *Journal) cursorAfter(changes []record.Change) wire.Cursor {
	for _, c := range slices.Backward(changes) {
		if c.Cursor != nil {
			return *c.Cursor
		}
	}
	return j.state.Cursor
}

// encodeCommit returns the messages of a commit, each with the state of the store after it, and the last of these states. A
// message before the last keeps the old cursor, so that the rest of the commit may be lost.
func (j *Journal) encodeCommit(changes []record.Change) (messages []*nats.Msg, state bucket.State, err error) {
	state = j.state
	messages = make([]*nats.Msg, 0, len(changes))
	earlier := map[wire.Key]*record.Record{}
	for _, c := range changes {
		m := c.Raw
		if c.Cursor != nil {
			state.Cursor = *c.Cursor
		}
		switch {
		case c.Record != nil:
			if m, err = j.bucket.Codec.EncodeRecord(c.Record); err != nil {
				return nil, state, err
			}
			old, ok := earlier[c.Record.Key]
			if !ok {
				old = j.index.Lookup(c.Record.Key)
			}
			state.Sum += c.Record.ChecksumTerm() - old.ChecksumTerm()
			state.Names += c.Record.NameTerm() - old.NameTerm()
			earlier[c.Record.Key] = c.Record
		case c.Cursor != nil:
			if m, err = bucket.EncodeCursor(*c.Cursor, j.neverPlain); err != nil {
				return nil, state, err
			}
		}
		bucket.SetState(m, state)
		messages = append(messages, m)
	}
	return messages, state, nil
}
