package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
)

const (
	// chunkMessages and chunkBytes limit one commit, so that a local write waits for one commit at most, not for a whole
	// snapshot. The server's limit of an atomic batch is 1,000 messages; an object has up to 1.5 MiB (etcd).
	chunkMessages = 256
	chunkBytes    = 2 << 20
)

// Put stores an object as the node's own write and returns its entry, synced to disk. With ifRevision it replaces only that
// revision (0: only if there is none); else it returns ErrConflict, or ErrNotFound for a missing object. An object deleted
// here cannot be put again with the same UID: ErrConflict. Bytes that are not an object get ErrInvalid.
func (s *Store) Put(ctx context.Context, key wire.Key, object []byte, ifRevision *uint64) (Entry, error) {
	uid, err := parseUID(object)
	if err != nil {
		return Entry{}, fmt.Errorf("put %s: %w", key.Human(), err)
	}
	var r *record
	err = s.planAndCommit(ctx, func() ([]change, error) {
		var err error
		r, err = planPut(s.lookupRecord(key), key, uid, object, ifRevision)
		if err != nil {
			return nil, err
		}
		return s.replaceChanges(s.lookupRecord(key), r), nil
	})
	if err != nil {
		return Entry{}, fmt.Errorf("put %s: %w", key.Human(), err)
	}
	return r.Entry, nil
}

// planPut returns the record that a Put writes, or the reason why it is refused.
func planPut(old *record, key wire.Key, uid string, object []byte, ifRevision *uint64) (*record, error) {
	exists := old != nil && old.state == stateLive
	switch {
	case ifRevision == nil:
	case *ifRevision == 0 && exists:
		return nil, fmt.Errorf("exists at revision %d: %w", old.Revision, ErrConflict)
	case *ifRevision != 0 && !exists:
		return nil, ErrNotFound
	case *ifRevision != 0 && old.Revision != *ifRevision:
		return nil, fmt.Errorf("at revision %d, not %d: %w", old.Revision, *ifRevision, ErrConflict)
	}
	r := &record{Entry: Entry{Key: key, UID: uid, Object: object}, state: stateLive}
	if old != nil {
		r.lastRemoteSeq, r.epoch = old.lastRemoteSeq, old.epoch
	}
	switch {
	case old == nil || old.state == stateTombstone:
	case old.state == stateGone:
		if uid == old.UID {
			return nil, fmt.Errorf("uid %s was deleted here: %w", uid, ErrConflict)
		}
	case uid == "" || old.UID == "" || uid == old.UID:
		if uid == "" {
			r.UID = old.UID
		}
		r.Version, r.ClusterEpoch, r.desired = old.Version, old.ClusterEpoch, old.desired
	}
	r.Sequence = r.remoteSequence()
	r.computeChecksums()
	return r, nil
}

// replaceChanges returns the changes that write r over old. Watchers see an object with another UID deleted first.
func (s *Store) replaceChanges(old, r *record) []change {
	if old == nil || old.state != stateLive || old.UID == "" || old.UID == r.UID {
		return []change{{record: r}}
	}
	t := &record{
		Entry: Entry{Key: r.Key, UID: old.UID, Version: old.Version, ClusterEpoch: old.ClusterEpoch},
		state: stateTombstone, lastRemoteSeq: old.lastRemoteSeq, epoch: old.epoch,
	}
	t.computeChecksums()
	return []change{{record: t}, {record: r}}
}

// Delete removes an object for the node itself, synced to disk, and returns its last state with the deletion's revision.
// Its UID is remembered, so that a late message does not restore it; see DeletedHere. uid and ifRevision are preconditions
// ("" and nil for none) and give ErrConflict; a missing object gives ErrNotFound.
func (s *Store) Delete(ctx context.Context, key wire.Key, uid string, ifRevision *uint64) (Entry, error) {
	var last Entry
	var r *record
	err := s.planAndCommit(ctx, func() ([]change, error) {
		old := s.lookupRecord(key)
		switch {
		case old == nil || old.state != stateLive:
			return nil, ErrNotFound
		case uid != "" && old.UID != uid:
			return nil, fmt.Errorf("has uid %s, not %s: %w", old.UID, uid, ErrConflict)
		case ifRevision != nil && old.Revision != *ifRevision:
			return nil, fmt.Errorf("at revision %d, not %d: %w", old.Revision, *ifRevision, ErrConflict)
		}
		last = old.Entry
		r = &record{
			Entry: Entry{Key: key, UID: old.UID, Version: old.Version, ClusterEpoch: old.ClusterEpoch},
			state: stateGone, desired: old.desired, lastRemoteSeq: old.lastRemoteSeq, epoch: old.epoch,
		}
		if old.UID == "" {
			r.state = stateTombstone // the cloud has never known it, so no message can refer to it
		}
		r.Sequence = r.remoteSequence()
		r.computeChecksums()
		return []change{{record: r}}, nil
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
	err := s.planAndCommit(ctx, func() ([]change, error) {
		old := s.lookupRecord(key)
		if old == nil || old.state != stateGone {
			return nil, nil
		}
		return []change{{record: newForgottenRecord(old)}}, nil
	})
	if err != nil {
		return fmt.Errorf("forget %s: %w", key.Human(), err)
	}
	return nil
}

// newForgottenRecord returns a tombstone with no lastRemoteSeq: it hides no message.
func newForgottenRecord(old *record) *record {
	r := &record{Entry: Entry{Key: old.Key, UID: old.UID}, state: stateTombstone}
	r.computeChecksums()
	return r
}

// Apply stores messages of the hub in the order of their sequences and then moves the cursor to sequence, all synced to
// disk. The caller has passed every message for this node up to sequence; messages beyond it may be included. A message
// that is not newer than the store, by the cursor or by the object's own sequence, is ignored. A message that is not an
// object is counted and ignored: the caller should have refused it.
func (s *Store) Apply(ctx context.Context, messages []wire.Message, sequence uint64) error {
	if err := acquireToken(ctx, s.remoteWriter); err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	defer releaseToken(s.remoteWriter)
	cursor := s.Cursor()
	final := cursor
	final.Sequence = max(final.Sequence, sequence)
	if len(messages) == 0 && final == cursor {
		return nil
	}
	if err := s.writeMessages(ctx, messages, applyPlan{cursor: cursor, upTo: sequence}, nil, final); err != nil {
		return fmt.Errorf("apply up to %d: %w", sequence, err)
	}
	return nil
}

// Replace makes the store equal to a full snapshot of the hub's stream. It stores every message, deletes every object of
// the hub that is not among them, and then sets the cursor. Objects that only this node knows stay. Remembered deletions
// stay for the objects that the snapshot still holds. A crash before the end leaves the old cursor. The last-good copy is
// removed: it may hold the states that the snapshot has just corrected.
func (s *Store) Replace(ctx context.Context, messages []wire.Message, streamEpoch string, sequence uint64) error {
	if err := acquireToken(ctx, s.remoteWriter); err != nil {
		return fmt.Errorf("replace: %w", err)
	}
	defer releaseToken(s.remoteWriter)
	final := wire.Cursor{StoreEpoch: s.Cursor().StoreEpoch, StreamEpoch: streamEpoch, Sequence: sequence}
	held := make(map[wire.Key]struct{}, len(messages))
	for _, m := range messages {
		if m.Op != wire.Delete { // of an unreadable message it is only known that the hub has the object
			held[m.Key] = struct{}{}
		}
	}
	if err := s.writeMessages(ctx, messages, applyPlan{cursor: final, upTo: sequence, fullSnapshot: true}, held, final); err != nil {
		return fmt.Errorf("replace up to %d: %w", sequence, err)
	}
	return nil
}

// sortBySequence returns messages by rising sequence, which is the order of the hub.
func sortBySequence(messages []wire.Message) []wire.Message {
	bySequence := func(a, b wire.Message) int { return cmp.Compare(a.Sequence, b.Sequence) }
	if slices.IsSortedFunc(messages, bySequence) {
		return messages
	}
	return slices.SortedStableFunc(slices.Values(messages), bySequence)
}

// writeMessages plans and commits messages in chunks. After the last chunk it commits, with held, the deletions of objects
// that are not held, and then the cursor.
func (s *Store) writeMessages(ctx context.Context, messages []wire.Message, p applyPlan, held map[wire.Key]struct{}, final wire.Cursor) error {
	messages = sortBySequence(messages)
	for {
		n := chunkLength(messages)
		last := n == len(messages)
		var done applyPlan
		err := s.planAndCommit(ctx, func() ([]change, error) {
			done = p
			done.lookup, done.merge = s.lookupRecord, s.cfg.Merge
			done.decided, done.ignored = map[wire.Key]*record{}, map[string]int{}
			for _, m := range messages[:n] {
				done.planMessage(m)
			}
			if last && held == nil {
				return append(toChanges(done.writes), change{cursor: &final}), nil
			}
			return toChanges(done.writes), nil
		})
		if err != nil {
			return err
		}
		s.countPlan(&done)
		messages = messages[n:]
		if last {
			break
		}
	}
	if held == nil {
		return nil
	}
	return s.deleteUnheld(ctx, held, final)
}

// deleteUnheld deletes the hub's objects that are not held, in chunks, and then sets the cursor.
func (s *Store) deleteUnheld(ctx context.Context, held map[wire.Key]struct{}, final wire.Cursor) error {
	for done := false; !done; {
		err := s.planAndCommit(ctx, func() ([]change, error) {
			var changes []change
			changes, done = s.unheldTombstones(held, final)
			if done {
				s.removeLastGood()
				changes = append(changes, change{cursor: &final})
			}
			return changes, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// unheldTombstones returns tombstones for objects that a snapshot does not hold, and whether these are all.
func (s *Store) unheldTombstones(held map[wire.Key]struct{}, final wire.Cursor) ([]change, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var changes []change
	for key, r := range s.records {
		_, ok := held[key]
		if ok || r.state == stateTombstone || r.state == stateLive && !r.desired {
			continue
		}
		if len(changes) == chunkMessages {
			return changes, false
		}
		t := &record{
			Entry: Entry{Key: key, UID: r.UID, Version: r.Version, ClusterEpoch: r.ClusterEpoch},
			state: stateTombstone, lastRemoteSeq: final.Sequence, epoch: final.StreamEpoch, desired: true,
		}
		t.computeChecksums()
		changes = append(changes, change{record: t})
	}
	return changes, true
}

func toChanges(records []*record) []change {
	changes := make([]change, 0, len(records)+1) // one more for the cursor
	for _, r := range records {
		changes = append(changes, change{record: r})
	}
	return changes
}

// chunkLength returns the number of messages in the next commit.
func chunkLength(messages []wire.Message) int {
	size := 0
	for i, m := range messages {
		size += len(m.Object)
		if i == chunkMessages || i > 0 && size > chunkBytes {
			return i
		}
	}
	return len(messages)
}

func (s *Store) countPlan(p *applyPlan) {
	s.metrics.applied.Add(float64(p.applied))
	for reason, n := range p.ignored {
		s.metrics.ignored.WithLabelValues(reason).Add(float64(n))
	}
	for _, err := range p.mergeErrors {
		s.metrics.mergeErrors.Inc()
		s.log.Warn("merge failed, the cloud's object is kept", zap.Error(err))
	}
}
