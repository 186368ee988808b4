package store

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store/lastgood"
	"github.com/frond-edge/frond/leaf/store/record"
	"github.com/frond-edge/frond/leaf/store/writeplan"
)

// Put stores an object as the node's own write and returns its entry, synced to disk. With ifRevision it replaces only that
// revision (0: only if there is none); else it returns ErrConflict, or ErrNotFound for a missing object. An object deleted
// here cannot be put again with the same UID: ErrConflict. Bytes that are not an object get ErrInvalid.
func (s *Store) Put(ctx context.Context, key wire.Key, object []byte, ifRevision *uint64) (Entry, error) {
	uid, err := record.ParseUID(object)
	if err != nil {
		return Entry{}, fmt.Errorf("put %s: %w", key.Human(), err)
	}
	var r *record.Record
	err = s.journal.Update(ctx, func() (changes []record.Change, err error) {
		r, changes, err = writeplan.Put(s.index.Lookup(key), key, uid, object, ifRevision)
		return changes, err
	})
	if err != nil {
		return Entry{}, fmt.Errorf("put %s: %w", key.Human(), err)
	}
	return r.Entry, nil
}

// Delete removes an object for the node itself, synced to disk, and returns its last state with the deletion's revision.
// Its UID is remembered, so that a late message does not restore it; see DeletedHere. uid and ifRevision are preconditions
// ("" and nil for none) and give ErrConflict; a missing object gives ErrNotFound.
func (s *Store) Delete(ctx context.Context, key wire.Key, uid string, ifRevision *uint64) (Entry, error) {
	var last Entry
	var r *record.Record
	err := s.journal.Update(ctx, func() (_ []record.Change, err error) {
		old := s.index.Lookup(key)
		if r, err = writeplan.Delete(old, uid, ifRevision); err != nil {
			return nil, err
		}
		last = old.Entry
		return []record.Change{{Record: r}}, nil
	})
	if err != nil {
		return Entry{}, fmt.Errorf("delete %s: %w", key.Human(), err)
	}
	last.Revision = r.Revision
	return last, nil
}

// ForgetDeletion forgets that an object was deleted here, so that the next message with its UID restores it. It repairs a
// deletion that the cloud refused. Without a remembered deletion it does nothing.
func (s *Store) ForgetDeletion(ctx context.Context, key wire.Key) error {
	err := s.journal.Update(ctx, func() ([]record.Change, error) {
		old := s.index.Lookup(key)
		if old == nil || old.State != record.Gone {
			return nil, nil
		}
		return []record.Change{{Record: writeplan.Forget(old)}}, nil
	})
	if err != nil {
		return fmt.Errorf("forget %s: %w", key.Human(), err)
	}
	return nil
}

// Apply stores messages of the hub in the order of their sequences and with the last of them moves the cursor to sequence, all
// synced to disk. The caller has passed every message for this node up to sequence; messages beyond it may be included. A message
// that is not newer than the store, by the cursor or by the object's own sequence, is ignored. The caller has refused payloads
// that are not JSON. A message that is not an object is counted and ignored.
func (s *Store) Apply(ctx context.Context, messages []wire.Message, sequence uint64) error {
	if err := s.remoteWriter.Acquire(ctx); err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	defer s.remoteWriter.Release()
	cursor := s.Cursor()
	final := cursor
	final.Sequence = max(final.Sequence, sequence)
	if len(messages) == 0 && final == cursor {
		return nil
	}
	if err := s.writeMessages(ctx, messages, writeplan.Position{Cursor: cursor, UpTo: sequence}, nil, final); err != nil {
		return fmt.Errorf("apply up to %d: %w", sequence, err)
	}
	return nil
}

// Replace makes the store equal to a full snapshot of the hub's stream. It stores every message, deletes every object of
// the hub that is not among them, and then sets the cursor. Objects that only this node knows stay. Remembered deletions
// stay for the objects that the snapshot still holds. A crash before the end leaves the old cursor. The last-good copy is
// removed: it may hold the states that the snapshot has just corrected.
func (s *Store) Replace(ctx context.Context, messages []wire.Message, streamEpoch string, sequence uint64) error {
	if err := s.remoteWriter.Acquire(ctx); err != nil {
		return fmt.Errorf("replace: %w", err)
	}
	defer s.remoteWriter.Release()
	final := wire.Cursor{StoreEpoch: s.Cursor().StoreEpoch, StreamEpoch: streamEpoch, Sequence: sequence}
	held := make(map[wire.Key]struct{}, len(messages))
	for _, m := range messages {
		if m.Op != wire.Delete { // of an unreadable message it is only known that the hub has the object
			held[m.Key] = struct{}{}
		}
	}
	if err := s.writeMessages(ctx, messages, writeplan.Position{Cursor: final, UpTo: sequence, FullSnapshot: true}, held, final); err != nil {
		return fmt.Errorf("replace up to %d: %w", sequence, err)
	}
	return nil
}

// writeMessages plans and commits messages in chunks. The last chunk ends with the cursor. With held the cursor comes after a
// further commit, of the deletions of objects that are not held.
func (s *Store) writeMessages(ctx context.Context, messages []wire.Message, at writeplan.Position, held map[wire.Key]struct{}, final wire.Cursor) error {
	messages = writeplan.SortBySequence(messages)
	for last := false; !last; {
		n := writeplan.CountChunk(messages)
		last = n == len(messages)
		var plan *writeplan.MessagePlan
		err := s.journal.Update(ctx, func() ([]record.Change, error) {
			plan = writeplan.ApplyMessages(messages[:n], at, s.index.Lookup, s.cfg.Merge)
			if !last || held != nil || len(plan.Changes) == 0 && final == s.Cursor() {
				return plan.Changes, nil
			}
			return writeplan.EndWithCursor(plan.Changes, final), nil
		})
		if err != nil {
			return err
		}
		s.countPlan(plan)
		messages = messages[n:]
	}
	if held == nil {
		return nil
	}
	return s.deleteUnheld(ctx, held, final)
}

// deleteUnheld deletes the hub's objects that are not held, in chunks, and then sets the cursor.
func (s *Store) deleteUnheld(ctx context.Context, held map[wire.Key]struct{}, final wire.Cursor) error {
	for done := false; !done; {
		err := s.journal.Update(ctx, func() ([]record.Change, error) {
			unheld, _, _ := s.index.Select(func(r *record.Record) bool { return writeplan.IsUnheld(r, held) })
			if done = len(unheld) <= writeplan.ChunkLength; !done {
				return writeplan.DeleteUnheld(unheld[:writeplan.ChunkLength], final), nil
			}
			s.lastGood.Remove()
			return append(writeplan.DeleteUnheld(unheld, final), record.Change{Cursor: &final}), nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) countPlan(p *writeplan.MessagePlan) {
	s.metrics.applied.Add(float64(p.Applied))
	for reason, n := range p.Ignored {
		s.metrics.ignored.WithLabelValues(reason).Add(float64(n))
	}
	for _, err := range p.MergeErrors {
		s.metrics.mergeErrors.Inc()
		s.log.Warn("merge failed, the cloud's object is kept", zap.Error(err))
	}
}

// SaveLastGood writes all records to Config.LastGoodFile, compressed and synced, unless nothing has changed since this
// process last did so. A new copy replaces the previous one as a whole. Writers wait for it; readers do not.
func (s *Store) SaveLastGood(ctx context.Context) error {
	if s.cfg.LastGoodFile == "" {
		return nil
	}
	err := s.journal.Exclusive(ctx, func(clean bool) error {
		head, records := lastgood.Collect(s.index, (*record.Record).IsDurable)
		if !clean || head.Revision == s.lastGood.Saved() || head.Cursor.StreamEpoch == "" { // a damaged store is never copied
			return nil
		}
		if s.cfg.CheckWritable != nil {
			if err := s.cfg.CheckWritable(); err != nil {
				return fmt.Errorf("%w: %w", ErrFull, err)
			}
		}
		n, err := s.lastGood.Save(head, records)
		if err != nil {
			return err
		}
		s.metrics.lastGoodSavedAt.Set(float64(head.Saved.Unix()))
		s.metrics.lastGoodBytes.Add(float64(n))
		return nil
	})
	if err != nil {
		return fmt.Errorf("save the copy: %w", err)
	}
	return nil
}
