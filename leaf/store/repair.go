package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
)

// repairDamage moves bad records into quarantine. It clears the cursor if an object or the cursor itself was damaged or is missing.
func (s *Store) repairDamage(ctx context.Context, got scanResult, end uint64) error {
	cursor := s.Cursor()
	damage := s.listDamage(got, end, cursor.StoreEpoch, s.recordSum)
	var changes []change
	if len(damage) > 0 {
		// The cursor is cleared first, so that a crash in between leaves a store that claims no completeness.
		unsure := wire.Cursor{StoreEpoch: cursor.StoreEpoch}
		if unsure.StoreEpoch == "" {
			unsure.StoreEpoch = uuid.NewString()
		}
		changes = append(changes, change{cursor: &unsure})
		cursor = unsure
	}
	for _, b := range got.bad {
		s.metrics.quarantined.Inc()
		if b.data == nil {
			continue
		}
		kept, err := s.quarantineRecord(b)
		if err != nil {
			return err
		}
		changes = append(changes, change{raw: kept}, change{raw: voidMessage(b)})
	}
	if len(damage) > 0 {
		var restored []change
		restored, cursor = s.restoreRecords(got, end, cursor, damage)
		changes = append(changes, restored...)
	}
	if cursor.StoreEpoch == "" {
		cursor.StoreEpoch = uuid.NewString()
	}
	if got.unreadable {
		return s.replaceBucket(ctx, changes, cursor)
	}
	if len(changes) > 0 || cursor != s.Cursor() {
		changes = append(changes, change{cursor: &cursor})
	}
	err := s.commitAll(ctx, changes)
	if errors.Is(err, errForeignWrite) {
		// No other writer is active now: the server's own index is wrong, so that it refuses each write.
		return s.replaceBucket(ctx, changes, cursor)
	}
	return err
}

// replaceBucket rebuilds the bucket because the server cannot read a record. The server then refuses every write to the
// stream, so a smaller repair is impossible.
func (s *Store) replaceBucket(ctx context.Context, changes []change, cursor wire.Cursor) error {
	s.log.Error("bucket holds records that cannot be read, creating it again", zap.Uint64("revision", s.Revision()))
	s.metrics.rebuilt.Inc()
	return s.rebuildBucket(ctx, changes, cursor)
}

// rebuildBucket creates the bucket anew from memory, with the quarantined records. A crash during the rebuild leaves an empty or partial
// store. The next Open treats it as new or damaged, and the next attach fills it. Revisions continue from their last value.
func (s *Store) rebuildBucket(ctx context.Context, changes []change, cursor wire.Cursor) error {
	changes = append(changes, s.carryQuarantine(ctx)...)
	if err := s.js.DeleteStream(ctx, streamName); err != nil {
		return fmt.Errorf("rebuild: delete bucket: %w", err)
	}
	stream, err := s.js.CreateStream(ctx, bucketConfig(s.cfg.MaxBytes))
	if err != nil {
		// The server removes the folder of an account's last stream after a delay and may remove the new stream's folder with it.
		stream, err = s.js.CreateStream(ctx, bucketConfig(s.cfg.MaxBytes))
	}
	if err != nil {
		return fmt.Errorf("rebuild: create bucket: %w", err)
	}
	if err := stream.Purge(ctx, jetstream.WithPurgeSequence(s.Revision()+1)); err != nil {
		return fmt.Errorf("rebuild: set sequence: %w", err)
	}
	if err := s.commitAll(ctx, append(s.appendRemembered(changes), change{cursor: &cursor})); err != nil {
		return fmt.Errorf("rebuild: %w", err)
	}
	return nil
}

// appendRemembered appends the records in memory of all other objects to changes: a change may not be in memory yet. Tombstones
// come first: a commit that ends in a tombstone carries a cursor, and a partial bucket must hold no cursor that fits.
func (s *Store) appendRemembered(changes []change) []change {
	changed := map[wire.Key]bool{}
	for _, c := range changes {
		if c.record != nil {
			changed[c.record.Key] = true
		}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, kept := range []bool{false, true} {
		for key, r := range s.records {
			if !changed[key] && r.isDurable() == kept {
				again := *r
				changes = append(changes, change{record: &again})
			}
		}
	}
	return changes
}

// commitAll commits changes in chunks.
func (s *Store) commitAll(ctx context.Context, changes []change) error {
	for len(changes) > 0 {
		n := min(len(changes), chunkMessages)
		if err := s.commit(ctx, changes[:n:n]); err != nil {
			return err
		}
		changes = changes[n:]
	}
	return nil
}

// listDamage lists the evidence that records were lost or changed; it is empty for a new or whole store. epoch and total
// are those of the records found.
func (s *Store) listDamage(got scanResult, end uint64, epoch string, total uint64) []string {
	var list []string
	for _, b := range got.bad {
		if strings.HasPrefix(b.subject, objectPrefix) || b.subject == cursorSubject {
			list = append(list, fmt.Sprintf("%s: %v", b.subject, b.reason))
		}
	}
	if end == 0 {
		return list
	}
	marked := uint64(0)
	if epoch != "" {
		if m := s.readHighWater(epoch); m != nil {
			marked = m.Revision
		}
	}
	switch want := strconv.FormatUint(total, 16); {
	case epoch == "":
		list = append(list, "no cursor")
	case got.lastSequence != end:
		list = append(list, fmt.Sprintf("last record is %d, the bucket had %d", got.lastSequence, end))
	case got.sum != want:
		list = append(list, fmt.Sprintf("sum of the records is %s, the last one says %s", want, got.sum))
	case end < marked:
		list = append(list, fmt.Sprintf("the bucket ends at %d, but %d was acked", end, marked))
	}
	return list
}

func quarantineMessage(b badRecord) *nats.Msg {
	m := nats.NewMsg(quarantinePrefix + strconv.FormatUint(b.revision, 10))
	m.Data = b.data
	setHeader(m, headerSubject, b.subject)
	setHeader(m, headerReason, b.reason.Error())
	setHeader(m, headerTTL, quarantineTTL.String())
	return m
}

func voidMessage(b badRecord) *nats.Msg {
	m := nats.NewMsg(b.subject)
	setHeader(m, headerState, string(stateVoid))
	setHeader(m, headerKV, kvDelete)
	setHeader(m, headerTTL, defaultTombstoneTTL.String())
	return m
}

// catchUp updates memory from the bucket after a commit of unknown outcome or a foreign write. Foreign writes and deletions
// are undone: memory holds the acked state. The caller holds writer.
func (s *Store) catchUp(ctx context.Context) error {
	stream, err := s.js.Stream(ctx, streamName)
	if err != nil {
		return fmt.Errorf("look up bucket: %w", err)
	}
	if s.isUnwritable(ctx, stream) {
		if err := s.replaceBucket(ctx, nil, s.Cursor()); err != nil {
			return err
		}
	}
	end, got, err := s.readBucket(ctx, stream, s.Revision()+1)
	if err != nil {
		return err
	}
	if end < s.Revision() {
		return fmt.Errorf("bucket ends at %d but %d was acked: it was replaced, the store must be opened again", end, s.Revision())
	}
	s.mu.Lock()
	for _, c := range got.changes {
		s.applyChange(c.change, c.revision)
	}
	s.revision = end
	s.mu.Unlock()
	s.recordSum, s.nameSum = s.sumRecords()
	s.dirty = false
	var undo []change
	for _, b := range got.bad {
		s.metrics.quarantined.Inc()
		s.log.Error("foreign record in the bucket, put aside", zap.String("subject", b.subject), zap.Error(b.reason))
		kept, err := s.quarantineRecord(b)
		if err != nil {
			return err
		}
		undo = append(undo, change{raw: kept}, s.undoForeign(b))
	}
	if len(undo) == 0 {
		return nil
	}
	cursor := s.Cursor()
	return s.commit(ctx, append(undo, change{cursor: &cursor}))
}

// isUnwritable reports whether the last commit failed because the server cannot read a record that the commit replaces. The
// server then does not find the record, or refuses the sequence that follows its last one.
func (s *Store) isUnwritable(ctx context.Context, stream jetstream.Stream) bool {
	if info, err := stream.Info(ctx); err == nil && s.sequenceRefused && info.State.LastSeq == s.Revision() {
		return true
	}
	for _, key := range s.suspectKeys {
		if !s.lookupRecord(key).isDurable() {
			continue
		}
		if _, err := stream.GetLastMsgForSubject(ctx, objectPrefix+key.String()); errors.Is(err, jetstream.ErrMsgNotFound) {
			return true
		}
	}
	return false
}

// undoForeign restores the record in memory over a foreign record.
func (s *Store) undoForeign(b badRecord) change {
	if b.subject == cursorSubject {
		cursor := s.Cursor()
		return change{cursor: &cursor}
	}
	if key, err := wire.ParseKey(strings.TrimPrefix(b.subject, objectPrefix)); err == nil {
		if r := s.lookupRecord(key); r != nil {
			again := *r
			return change{record: &again}
		}
	}
	return change{raw: voidMessage(b)}
}
