package writeplan

import (
	"errors"
	"fmt"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store/record"
)

var (
	// ErrNotFound reports that the store does not hold the object. Until the first attach that is no proof of absence.
	ErrNotFound = errors.New("object not found")
	// ErrConflict reports that the object is not in the state the writer assumed: another revision, another UID, or deleted here.
	ErrConflict = errors.New("object changed")
)

// Put plans that the node writes an object over old, which is nil for none. It returns the record and the changes that end
// with it: watchers see an object with another UID deleted first.
func Put(old *record.Record, key wire.Key, uid string, object []byte, ifRevision *uint64) (*record.Record, []record.Change, error) {
	exists := old != nil && old.State == record.Live
	switch {
	case ifRevision == nil:
	case *ifRevision == 0 && exists:
		return nil, nil, fmt.Errorf("exists at revision %d: %w", old.Revision, ErrConflict)
	case *ifRevision != 0 && !exists:
		return nil, nil, ErrNotFound
	case *ifRevision != 0 && old.Revision != *ifRevision:
		return nil, nil, fmt.Errorf("at revision %d, not %d: %w", old.Revision, *ifRevision, ErrConflict)
	}
	r := &record.Record{Entry: record.Entry{Key: key, UID: uid, Object: object}, State: record.Live}
	if old != nil {
		r.LastRemoteSeq, r.StreamEpoch = old.LastRemoteSeq, old.StreamEpoch
	}
	switch {
	case old == nil || old.State == record.Tombstone:
	case old.State == record.Gone:
		if uid == old.UID {
			return nil, nil, fmt.Errorf("uid %s was deleted here: %w", uid, ErrConflict)
		}
	case uid == "" || old.UID == "" || uid == old.UID:
		if uid == "" {
			r.UID = old.UID
		}
		r.Version, r.ClusterEpoch, r.Desired = old.Version, old.ClusterEpoch, old.Desired
	}
	r.Derive()
	if !exists || old.UID == "" || old.UID == r.UID {
		return r, []record.Change{{Record: r}}, nil
	}
	return r, []record.Change{{Record: newDeletion(old, record.Tombstone, false)}, {Record: r}}, nil
}

// Delete plans that the node deletes an object. The UID stays remembered, so that a late message does not restore the object.
// uid and ifRevision are preconditions, "" and nil for none.
func Delete(old *record.Record, uid string, ifRevision *uint64) (*record.Record, error) {
	switch {
	case old == nil || old.State != record.Live:
		return nil, ErrNotFound
	case uid != "" && old.UID != uid:
		return nil, fmt.Errorf("has uid %s, not %s: %w", old.UID, uid, ErrConflict)
	case ifRevision != nil && old.Revision != *ifRevision:
		return nil, fmt.Errorf("at revision %d, not %d: %w", old.Revision, *ifRevision, ErrConflict)
	case old.UID == "": // the cloud has never known it, so no message can refer to it
		return newDeletion(old, record.Tombstone, old.Desired), nil
	}
	return newDeletion(old, record.Gone, old.Desired), nil
}

// newDeletion returns the record of old's deletion.
func newDeletion(old *record.Record, state record.State, desired bool) *record.Record {
	r := &record.Record{
		Entry: record.Entry{Key: old.Key, UID: old.UID, Version: old.Version, ClusterEpoch: old.ClusterEpoch},
		State: state, Desired: desired, LastRemoteSeq: old.LastRemoteSeq, StreamEpoch: old.StreamEpoch,
	}
	r.Derive()
	return r
}

// Forget plans that the deletion of an object is forgotten: it returns a tombstone with no sequence, which hides no message.
func Forget(old *record.Record) *record.Record {
	r := &record.Record{Entry: record.Entry{Key: old.Key, UID: old.UID}, State: record.Tombstone}
	r.Derive()
	return r
}

// IsUnheld reports whether a full snapshot that holds some keys deletes an object: one of the hub, or one deleted here.
func IsUnheld(r *record.Record, held map[wire.Key]struct{}) bool {
	_, ok := held[r.Key]
	return !ok && r.IsDurable() && (r.State != record.Live || r.Desired)
}

// DeleteUnheld plans the deletion of objects that a snapshot, which ends at a cursor, does not hold.
func DeleteUnheld(unheld []*record.Record, final wire.Cursor) []record.Change {
	changes := make([]record.Change, 0, len(unheld)+1) // one more for the cursor
	for _, r := range unheld {
		t := &record.Record{
			Entry: record.Entry{Key: r.Key, UID: r.UID, Version: r.Version, ClusterEpoch: r.ClusterEpoch},
			State: record.Tombstone, LastRemoteSeq: final.Sequence, StreamEpoch: final.StreamEpoch, Desired: true,
		}
		t.Derive()
		changes = append(changes, record.Change{Record: t})
	}
	return changes
}
