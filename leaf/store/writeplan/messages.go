// Package writeplan decides which records a write of the node or a message of the hub makes of the stored ones: which state
// wins, what is deleted, and what is refused or ignored. It does no I/O and holds no state between calls.
package writeplan

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store/record"
)

const (
	// ChunkLength and chunkBytes limit one commit, so that a local write waits for one commit at most, not for a whole
	// snapshot. The server's limit of an atomic batch is 1,000 messages; an object has up to 1.5 MiB (etcd).
	ChunkLength = 256
	chunkBytes  = 2 << 20
)

// Reasons why a message was ignored: values of a metric's label.
const (
	ignoredStale   = "stale"        // older than what is stored, or a repeat
	ignoredAbsent  = "absent"       // a tombstone for an object that is not stored
	ignoredUID     = "other-uid"    // a tombstone whose UID differs from the node's own object of that name
	ignoredDeleted = "deleted-here" // this object was deleted at the node
	ignoredInvalid = "invalid"      // not an object, or an unknown operation
)

// Position says how messages of the hub relate to the stored records.
type Position struct {
	// Cursor is the store's cursor before the messages; for a full snapshot only its StreamEpoch, the new one, counts.
	Cursor wire.Cursor
	// FullSnapshot: the messages are a full snapshot, so the stored records are older, whatever their sequence.
	FullSnapshot bool
	// UpTo is the cursor's sequence after the messages. Tombstones beyond it are remembered.
	UpTo uint64
}

// MessagePlan turns messages of the hub into records to write. It sees its own earlier decisions.
type MessagePlan struct {
	// Changes are the records to write, in order.
	Changes []record.Change
	// Applied counts the messages that change something, Ignored the others by their reason.
	Applied int
	Ignored map[string]int
	// MergeErrors are the merges that failed; the cloud's object is kept.
	MergeErrors []error

	position Position
	merge    func(key wire.Key, local, desired []byte) ([]byte, error)
	lookup   func(wire.Key) *record.Record
	// decided holds the plan's latest decision for each key.
	decided map[wire.Key]*record.Record
}

// ApplyMessages plans messages in the given order. lookup returns the stored record of a key, nil for none. merge joins the
// stored object with a newer one of the same UID; nil keeps the newer one.
func ApplyMessages(messages []wire.Message, at Position, lookup func(wire.Key) *record.Record, merge func(key wire.Key, local, desired []byte) ([]byte, error)) *MessagePlan {
	p := &MessagePlan{Ignored: map[string]int{}, position: at, merge: merge, lookup: lookup, decided: map[wire.Key]*record.Record{}}
	for _, m := range messages {
		p.planMessage(m)
	}
	return p
}

// SortBySequence returns messages by rising sequence, which is the order of the hub.
func SortBySequence(messages []wire.Message) []wire.Message {
	bySequence := func(a, b wire.Message) int { return cmp.Compare(a.Sequence, b.Sequence) }
	if slices.IsSortedFunc(messages, bySequence) {
		return messages
	}
	return slices.SortedStableFunc(slices.Values(messages), bySequence)
}

// EndWithCursor makes the changes end with a cursor. Their last record carries it, unless that expires: then, or without changes,
// the cursor is a message of its own.
func EndWithCursor(changes []record.Change, cursor wire.Cursor) []record.Change {
	if n := len(changes); n > 0 && changes[n-1].Record.IsDurable() {
		changes[n-1].Cursor = &cursor
		return changes
	}
	return append(changes, record.Change{Cursor: &cursor})
}

// CountChunk returns how many of the messages belong in the next commit.
func CountChunk(messages []wire.Message) int {
	size := 0
	for i, m := range messages {
		size += len(m.Object)
		if i == ChunkLength || i > 0 && size > chunkBytes {
			return i
		}
	}
	return len(messages)
}

func (p *MessagePlan) currentRecord(key wire.Key) *record.Record {
	if r, ok := p.decided[key]; ok {
		return r
	}
	return p.lookup(key)
}

func (p *MessagePlan) addWrite(r *record.Record) {
	r.Derive()
	p.decided[r.Key] = r
	p.Changes = append(p.Changes, record.Change{Record: r})
}

// planMessage decides whether one message is written or ignored.
func (p *MessagePlan) planMessage(m wire.Message) {
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
		p.Applied++
	} else {
		p.Ignored[reason]++
	}
}

func (p *MessagePlan) isStale(old *record.Record, m wire.Message) bool {
	if p.position.FullSnapshot {
		return false
	}
	return m.Sequence <= p.position.Cursor.Sequence || old != nil && old.StreamEpoch == p.position.Cursor.StreamEpoch && m.Sequence <= old.LastRemoteSeq
}

func (p *MessagePlan) planDelete(old *record.Record, m wire.Message) string {
	if old == nil || old.State == record.Tombstone {
		if m.Sequence <= p.position.UpTo {
			return ignoredAbsent
		}
		p.addWrite(p.newTombstone(m, m.UID))
		return ""
	}
	// A newer tombstone of the hub removes an object that came from the hub, whatever its UID: versions in between may have
	// been skipped. An object that the node itself created is not the object in the hub's message.
	if !old.Desired && m.UID != "" && old.UID != "" && m.UID != old.UID {
		return ignoredUID
	}
	p.addWrite(p.newTombstone(m, old.UID))
	return ""
}

// newTombstone returns the tombstone that m leaves.
func (p *MessagePlan) newTombstone(m wire.Message, uid string) *record.Record {
	return &record.Record{
		Entry: record.Entry{Key: m.Key, UID: uid, Version: m.Version, ClusterEpoch: m.ClusterEpoch},
		State: record.Tombstone, Desired: true, LastRemoteSeq: m.Sequence, StreamEpoch: p.position.Cursor.StreamEpoch,
	}
}

func (p *MessagePlan) planApply(old *record.Record, m wire.Message) string {
	if !hasObject(m) {
		return ignoredInvalid
	}
	r := &record.Record{
		Entry: record.Entry{Key: m.Key, UID: m.UID, Version: m.Version, ClusterEpoch: m.ClusterEpoch, Object: m.Object},
		State: record.Live, Desired: true, LastRemoteSeq: m.Sequence, StreamEpoch: p.position.Cursor.StreamEpoch,
	}
	switch {
	case old == nil || old.State == record.Tombstone:
	case old.State == record.Gone:
		if m.UID == old.UID && !isOtherHistory(old, m) {
			return ignoredDeleted
		}
	case m.UID != "" && old.UID != "" && m.UID != old.UID:
		// An object with another UID and the same name: watchers must see the old one deleted first.
		p.addWrite(p.newTombstone(m, old.UID))
	default:
		p.mergeObject(old, r)
		if p.position.FullSnapshot && isUnchanged(old, r) {
			return ignoredStale
		}
	}
	p.addWrite(r)
	return ""
}

// hasObject reports whether a message carries an object. If it names the object's UID and version, its sender has read them from
// the object, and a receiver has checked that the payload is JSON: it is not parsed again.
func hasObject(m wire.Message) bool {
	if m.UID != "" && m.Version != "" {
		trimmed := bytes.TrimLeft(m.Object, " \t\r\n")
		return len(trimmed) > 0 && trimmed[0] == '{'
	}
	_, err := record.ParseUID(m.Object)
	return err == nil
}

func isSameSlice(a, b []byte) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// isOtherHistory reports whether a message belongs to another Kubernetes history than the record. The API was then restored
// to a state in which the object existed, so the node's own deletion never happened in that history.
func isOtherHistory(old *record.Record, m wire.Message) bool {
	return old.ClusterEpoch != "" && m.ClusterEpoch != "" && m.ClusterEpoch != old.ClusterEpoch
}

// mergeObject merges the node's local fields of the object into the cloud's newer state.
func (p *MessagePlan) mergeObject(old, r *record.Record) {
	if r.UID == "" {
		r.UID = old.UID
	}
	if p.merge == nil {
		return
	}
	object, err := p.merge(r.Key, old.Object, r.Object)
	if err == nil && !isSameSlice(object, r.Object) {
		_, err = record.ParseUID(object)
	}
	if err != nil {
		p.MergeErrors = append(p.MergeErrors, err)
		return
	}
	r.Object = object
}

// isUnchanged reports whether a snapshot holds the stored state of an object, so that the record need not be written again.
func isUnchanged(old, r *record.Record) bool {
	return old.LastGood.IsZero() && old.Desired && old.UID == r.UID && old.Version == r.Version && old.ClusterEpoch == r.ClusterEpoch &&
		string(old.Object) == string(r.Object)
}
