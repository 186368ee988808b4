// Package decision decides what to do with one subject of the stream.
package decision

import (
	"github.com/frond-edge/frond/controllers/desired/payload"
	"github.com/frond-edge/frond/controllers/desired/published"
)

// Action is the action to take on one subject of the stream.
type Action int

// The actions.
const (
	None Action = iota
	Publish
	Tombstone
	Purge
)

// Input is everything that a decision about one object at one node depends on.
type Input struct {
	// Want is the object's state; nil if the node needs no such object or the object does not exist.
	Want      *payload.Payload
	Published published.Record
	// Retain: nothing may be removed now, as it is not certain that the node is gone permanently.
	Retain bool
	// AckedSequence is the stream sequence up to which the node has all messages on disk.
	AckedSequence uint64
	// Purgeable: a tombstone is old enough to be purged.
	Purgeable bool
}

// Decide returns the action that makes the stream hold what is wanted.
func Decide(in Input) Action {
	held := in.Published
	switch {
	case in.Want != nil && (held.Sequence == 0 || held.Deleted):
		return Publish
	case in.Want != nil && (held.UID != in.Want.UID || held.Digest != in.Want.Digest || held.ForeignEpoch):
		return Publish
	case in.Want != nil || held.Sequence == 0:
		return None
	case !held.Deleted && in.Retain:
		return None
	case !held.Deleted:
		return Tombstone
	case held.Sequence <= in.AckedSequence && in.Purgeable:
		return Purge
	default:
		return None
	}
}
