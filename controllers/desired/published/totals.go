package published

import "github.com/frond-edge/frond/api/wire"

// totals sum up the records of a node, so that a heartbeat costs no walk over them.
type totals struct {
	// live sums up the objects that are not tombstones, without the snapshot marker.
	live wire.Inventory
	// last is the highest sequence of a record. outdated: its record was removed, and last is only an upper bound.
	last     uint64
	outdated bool
}

// add adds a record.
func (t *totals) add(key wire.Key, r Record) {
	if r.Sequence >= t.last {
		t.last, t.outdated = r.Sequence, false
	}
	if r.isLive(key) {
		t.live.Add(key, r.UID, r.Version)
	}
}

// remove removes a record that was added.
func (t *totals) remove(key wire.Key, r Record) {
	if r.Sequence == t.last {
		t.outdated = true
	}
	if r.isLive(key) {
		t.live.Remove(key, r.UID, r.Version)
	}
}

// lastSequence returns the highest sequence of the records, all of which were added. It walks over them only after the newest
// one was removed, which happens when a tombstone is purged.
func (t *totals) lastSequence(records *table) uint64 {
	if t.outdated {
		t.last, t.outdated = 0, false
		for _, r := range records.all() {
			t.last = max(t.last, r.sequence)
		}
	}
	return t.last
}

// isLive reports whether a record is of an object that a node counts.
func (r Record) isLive(key wire.Key) bool { return !r.Deleted && key != wire.SnapshotMarker() }
