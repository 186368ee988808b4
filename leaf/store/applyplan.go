package store

import (
	"github.com/frond-edge/frond/api/wire"
)

// Why a message changed nothing; values of a metric's label.
const (
	ignoredStale   = "stale"        // older than what is stored, or a repeat
	ignoredAbsent  = "absent"       // a tombstone for what is not here
	ignoredUID     = "other-uid"    // a tombstone for another object than the node's own of that name
	ignoredDeleted = "deleted-here" // this object was deleted at the node
	ignoredInvalid = "invalid"      // not an object, or an unknown operation
)

// plan turns messages of the hub into records to write. It sees its own earlier decisions, and no I/O.
type plan struct {
	// base returns the stored record of a key, nil for none.
	base func(wire.Key) *record
	// made holds what this plan decided last for a key.
	made map[wire.Key]*record
	// cursor is the store's cursor before the messages; for a full snapshot only its StreamEpoch, the new one, counts.
	cursor wire.Cursor
	// full: the messages are a snapshot, so what is stored is older whatever its sequence says.
	full bool
	// upTo is the cursor's sequence after the messages. Tombstones beyond it are remembered.
	upTo  uint64
	merge func(key wire.Key, local, desired []byte) ([]byte, error)

	writes   []*record
	ignored  map[string]int
	applied  int
	mergeErr []error
}

func (p *plan) current(key wire.Key) *record {
	if r, ok := p.made[key]; ok {
		return r
	}
	return p.base(key)
}

func (p *plan) write(r *record) {
	r.stamp()
	p.made[r.Key] = r
	p.writes = append(p.writes, r)
}

// message decides on one message.
func (p *plan) message(m wire.Message) {
	old := p.current(m.Key)
	reason := ""
	switch {
	case p.stale(old, m):
		reason = ignoredStale
	case m.Op == wire.Delete:
		reason = p.tombstone(old, m)
	case m.Op == wire.Apply:
		reason = p.apply(old, m)
	default:
		reason = ignoredInvalid
	}
	if reason == "" {
		p.applied++
	} else {
		p.ignored[reason]++
	}
}

func (p *plan) stale(old *record, m wire.Message) bool {
	if p.full {
		return false
	}
	return m.Sequence <= p.cursor.Sequence || old != nil && old.epoch == p.cursor.StreamEpoch && m.Sequence <= old.floor
}

func (p *plan) tombstone(old *record, m wire.Message) string {
	if old == nil || old.state == tombstone {
		if m.Sequence <= p.upTo {
			return ignoredAbsent
		}
		p.write(p.deleted(m, m.UID))
		return ""
	}
	// What came from the hub is gone by the hub's newer word, whatever its UID: versions in between may have been skipped. An
	// object that the node itself brought is another one than the hub speaks of.
	if !old.desired && m.UID != "" && old.UID != "" && m.UID != old.UID {
		return ignoredUID
	}
	p.write(p.deleted(m, old.UID))
	return ""
}

// deleted is the tombstone that m leaves.
func (p *plan) deleted(m wire.Message, uid string) *record {
	r := &record{
		Entry: Entry{Key: m.Key, UID: uid, Version: m.Version, ClusterEpoch: m.ClusterEpoch},
		state: tombstone, desired: true, floor: m.Sequence, epoch: p.cursor.StreamEpoch,
	}
	r.Sequence = r.sequence()
	return r
}

func (p *plan) apply(old *record, m wire.Message) string {
	if _, err := identity(m.Object); err != nil {
		return ignoredInvalid
	}
	r := &record{
		Entry: Entry{Key: m.Key, UID: m.UID, Version: m.Version, ClusterEpoch: m.ClusterEpoch, Object: m.Object},
		state: live, desired: true, floor: m.Sequence, epoch: p.cursor.StreamEpoch,
	}
	r.Sequence = r.sequence()
	switch {
	case old == nil || old.state == tombstone:
	case old.state == gone:
		if m.UID == old.UID && !restored(old, m) {
			return ignoredDeleted
		}
	case m.UID != "" && old.UID != "" && m.UID != old.UID:
		// Another object of the same name: watchers must see the old one go first.
		p.write(p.deleted(m, old.UID))
	default:
		p.join(old, r)
		if p.full && same(old, r) {
			return ignoredStale
		}
	}
	p.write(r)
	return ""
}

// restored reports whether a message speaks of another Kubernetes history than the record: the API went back to a time when
// the object was there, so that the node's own deletion of it has never been.
func restored(old *record, m wire.Message) bool {
	return old.ClusterEpoch != "" && m.ClusterEpoch != "" && m.ClusterEpoch != old.ClusterEpoch
}

// join merges what the node knows of the object into the cloud's newer state.
func (p *plan) join(old, r *record) {
	if r.UID == "" {
		r.UID = old.UID
	}
	if p.merge == nil {
		return
	}
	object, err := p.merge(r.Key, old.Object, r.Object)
	if err == nil {
		_, err = identity(object)
	}
	if err != nil {
		p.mergeErr = append(p.mergeErr, err)
		return
	}
	r.Object = object
}

// same reports whether a snapshot brings nothing new for an object, so that it need not be written again.
func same(old, r *record) bool {
	return old.LastGood.IsZero() && old.desired && old.UID == r.UID && old.Version == r.Version && old.ClusterEpoch == r.ClusterEpoch &&
		string(old.Object) == string(r.Object)
}
