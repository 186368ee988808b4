package journal

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store/bucket"
	"github.com/frond-edge/frond/leaf/store/record"
)

// catchUp updates memory from the bucket after a commit of unknown outcome or a foreign write. Foreign writes and deletions
// are undone: memory holds the acked state. A message that can be read may still not be on disk, as the server counts one whose
// write failed. So the cursor moves only with another commit, which is synced. The caller holds writer.
func (j *Journal) catchUp(ctx context.Context) error {
	stream, err := j.bucket.Lookup(ctx)
	if err != nil {
		return err
	}
	if j.isUnwritable(ctx, stream) {
		if err := j.ReplaceDamaged(ctx, nil, j.index.Cursor()); err != nil {
			return err
		}
	}
	got, err := j.bucket.Read(ctx, stream, j.index.Revision()+1)
	if err != nil {
		return err
	}
	if acked := j.index.Revision(); got.End < acked {
		return fmt.Errorf("bucket ends at %d but %d was acked: it was replaced, the store must be opened again", got.End, acked)
	}
	j.index.Apply(append(got.Changes, record.Change{Revision: got.End}))
	j.Adopt(j.neverPlain)
	var undo []record.Change
	for _, b := range got.Bad {
		j.cfg.Quarantined.Inc()
		j.log.Error("foreign record in the bucket, put aside", zap.String("subject", b.Subject), zap.Error(b.Reason))
		kept, err := j.bucket.Codec.Quarantine(b)
		if err != nil {
			return err
		}
		undo = append(undo, kept, j.undoForeign(b))
	}
	if got.LastSequence == 0 { // nothing was written since the last acked commit
		return nil
	}
	cursor := got.Cursor()
	if cursor.StoreEpoch == "" {
		cursor = j.index.Cursor()
	}
	return j.commit(ctx, append(undo, record.Change{Cursor: &cursor}))
}

// isUnwritable reports whether the last commit failed because the server cannot read a record that the commit replaces. The
// server then does not find the record, or refuses the sequence that follows its last one.
func (j *Journal) isUnwritable(ctx context.Context, stream jetstream.Stream) bool {
	if info, err := stream.Info(ctx); err == nil && j.sequenceRefused && info.State.LastSeq == j.index.Revision() {
		return true
	}
	for _, key := range j.suspectKeys {
		if j.index.Lookup(key).IsDurable() && bucket.IsMissing(ctx, stream, key) {
			return true
		}
	}
	return false
}

// undoForeign restores the record in memory over a foreign record.
func (j *Journal) undoForeign(b bucket.BadRecord) record.Change {
	if b.IsCursor() {
		cursor := j.index.Cursor()
		return record.Change{Cursor: &cursor}
	}
	if key, err := b.Key(); err == nil {
		if r := j.index.Lookup(key); r != nil {
			again := *r
			return record.Change{Record: &again}
		}
	}
	return bucket.Void(b)
}

// ReplaceDamaged rebuilds the bucket because the server cannot read a record. The server then refuses every write to the
// stream, so a smaller repair is impossible. Only the recovery of a store that nobody uses yet may call it.
func (j *Journal) ReplaceDamaged(ctx context.Context, changes []record.Change, cursor wire.Cursor) error {
	j.log.Error("bucket holds records that cannot be read, creating it again", zap.Uint64("revision", j.index.Revision()))
	j.cfg.Rebuilt.Inc()
	return j.rebuild(ctx, changes, cursor)
}

// RebuildSealed rebuilds the bucket so that it has never held a secret as plain text. Only the recovery of a store that
// nobody uses yet may call it.
func (j *Journal) RebuildSealed(ctx context.Context) error {
	j.neverPlain = true
	return j.rebuild(ctx, nil, j.index.Cursor())
}

// rebuild creates the bucket anew from memory, with the quarantined records. A crash during the rebuild leaves an empty or partial
// store. The next Open treats it as new or damaged, and the next attach fills it. Revisions continue from their last value.
func (j *Journal) rebuild(ctx context.Context, changes []record.Change, cursor wire.Cursor) error {
	changes = append(changes, j.bucket.CarryQuarantine(ctx)...)
	if err := j.bucket.Recreate(ctx, j.index.Revision()); err != nil {
		return fmt.Errorf("rebuild: %w", err)
	}
	j.state.Cursor = wire.Cursor{} // up to the last message, as a partial bucket must hold no cursor
	if err := j.CommitAll(ctx, append(j.appendRemembered(changes), record.Change{Cursor: &cursor})); err != nil {
		return fmt.Errorf("rebuild: %w", err)
	}
	return nil
}

// appendRemembered appends the records in memory of all other objects to changes: a change may not be in memory yet. Tombstones
// come first: the sums do not contain them, so only what follows shows whether all are there.
func (j *Journal) appendRemembered(changes []record.Change) []record.Change {
	changed := map[wire.Key]bool{}
	for _, c := range changes {
		if c.Record != nil {
			changed[c.Record.Key] = true
		}
	}
	for _, kept := range []bool{false, true} {
		records, _, _ := j.index.Select(func(r *record.Record) bool { return !changed[r.Key] && r.IsDurable() == kept })
		for _, r := range records {
			again := *r
			changes = append(changes, record.Change{Record: &again})
		}
	}
	return changes
}
