package store

import (
	"github.com/frond-edge/frond/api/wire"
)

// Reasons why a message was ignored: values of a metric's label.
const (
	ignoredStale   = "stale"        // older than what is stored, or a repeat
	ignoredAbsent  = "absent"       // a tombstone for an object that is not stored
	ignoredUID     = "other-uid"    // a tombstone whose UID differs from the node's own object of that name
	ignoredDeleted = "deleted-here" // this object was deleted at the node
	ignoredInvalid = "invalid"      // not an object, or an unknown operation
)

// applyPlan turns messages of the hub into records to write. It sees its own earlier decisions and does no I/O.
type applyPlan struct {
	// lookup returns the stored record of a key, nil for none.
	lookup func(wire.Key) *record
	// decided holds the plan's latest decision for each key.
	decided map[wire.Key]*record
	// cursor is the store's cursor before the messages; for a full snapshot only its StreamEpoch, the new one, counts.
	cursor wire.Cursor
	// fullSnapshot: the messages are a full snapshot, so the stored records are older, whatever their sequence.
	fullSnapshot bool
	// upTo is the cursor's sequence after the messages. Tombstones beyond it are remembered.
	upTo  uint64
	merge func(key wire.Key, local, desired []byte) ([]byte, error)

	writes      []*record
	ignored     map[string]int
	applied     int
	mergeErrors []error
}

func (p *applyPlan) currentRecord(key wire.Key) *record {
	if r, ok := p.decided[key]; ok {
		return r
	}
	return p.lookup(key)
}

func (p *applyPlan) addWrite(r *record) {
	r.computeChecksums()
	p.decided[r.Key] = r
	p.writes = append(p.writes, r)
}

// planMessage decides whether one message is written or ignored.
func (p *applyPlan) planMessage(m wire.Message) {
	old := p.currentRecord(m.Key)
	reason := ""
	switch {
	case p.isStale(old, m):
		reason = ignoredStale
	case m.Op == wire.Delete:
		reason = p.planDelete(old, m)
	case m.Op == wire.Apply:
		reason = p.planApply(old, m)
	default:
		reason = ignoredInvalid
	}
	if reason == "" {
		p.applied++
	} else {
		p.ignored[reason]++
	}
}

func (p *applyPlan) isStale(old *record, m wire.Message) bool {
	if p.fullSnapshot {
		return false
	}
	return m.Sequence <= p.cursor.Sequence || old != nil && old.epoch == p.cursor.StreamEpoch && m.Sequence <= old.lastRemoteSeq
}

func (p *applyPlan) planDelete(old *record, m wire.Message) string {
	if old == nil || old.state == stateTombstone {
		if m.Sequence <= p.upTo {
			return ignoredAbsent
		}
		p.addWrite(p.newTombstone(m, m.UID))
		return ""
	}
	// A newer tombstone of the hub removes an object that came from the hub, whatever its UID: versions in between may have
	// been skipped. An object that the node itself created is not the object in the hub's message.
	if !old.desired && m.UID != "" && old.UID != "" && m.UID != old.UID {
		return ignoredUID
	}
	p.addWrite(p.newTombstone(m, old.UID))
	return ""
}

// newTombstone returns the tombstone that m leaves.
func (p *applyPlan) newTombstone(m wire.Message, uid string) *record {
	r := &record{
		Entry: Entry{Key: m.Key, UID: uid, Version: m.Version, ClusterEpoch: m.ClusterEpoch},
		state: stateTombstone, desired: true, lastRemoteSeq: m.Sequence, epoch: p.cursor.StreamEpoch,
	}
	r.Sequence = r.remoteSequence()
	return r
}

func (p *applyPlan) planApply(old *record, m wire.Message) string {
	if _, err := parseUID(m.Object); err != nil {
		return ignoredInvalid
	}
	r := &record{
		Entry: Entry{Key: m.Key, UID: m.UID, Version: m.Version, ClusterEpoch: m.ClusterEpoch, Object: m.Object},
		state: stateLive, desired: true, lastRemoteSeq: m.Sequence, epoch: p.cursor.StreamEpoch,
	}
	r.Sequence = r.remoteSequence()
	switch {
	case old == nil || old.state == stateTombstone:
	case old.state == stateGone:
		if m.UID == old.UID && !isOtherHistory(old, m) {
			return ignoredDeleted
		}
	case m.UID != "" && old.UID != "" && m.UID != old.UID:
		// An object with another UID and the same name: watchers must see the old one deleted first.
		p.addWrite(p.newTombstone(m, old.UID))
	default:
		p.mergeObject(old, r)
		if p.fullSnapshot && isUnchanged(old, r) {
			return ignoredStale
		}
	}
	p.addWrite(r)
	return ""
}

// isOtherHistory reports whether a message belongs to another Kubernetes history than the record. The API was then restored
// to a state in which the object existed, so the node's own deletion never happened in that history.
func isOtherHistory(old *record, m wire.Message) bool {
	return old.ClusterEpoch != "" && m.ClusterEpoch != "" && m.ClusterEpoch != old.ClusterEpoch
}

// mergeObject merges the node's local fields of the object into the cloud's newer state.
func (p *applyPlan) mergeObject(old, r *record) {
	if r.UID == "" {
		r.UID = old.UID
	}
	if p.merge == nil {
		return
	}
	object, err := p.merge(r.Key, old.Object, r.Object)
	if err == nil {
		_, err = parseUID(object)
	}
	if err != nil {
		p.mergeErrors = append(p.mergeErrors, err)
		return
	}
	r.Object = object
}

// isUnchanged reports whether a snapshot holds the stored state of an object, so that the record need not be written again.
func isUnchanged(old, r *record) bool {
	return old.LastGood.IsZero() && old.desired && old.UID == r.UID && old.Version == r.Version && old.ClusterEpoch == r.ClusterEpoch &&
		string(old.Object) == string(r.Object)
}
