package desired

import "time"

// action is what has to happen to one subject of the stream.
type action int

const (
	nothing action = iota
	publish
	tombstone
	purge
)

// record is what the stream holds of one object, as far as this replica knows. The zero record: nothing.
type record struct {
	sequence uint64
	deleted  bool
	uid      string
	digest   string
	// at is when the message was made.
	at time.Time
}

// input is all that a decision about one object at one node depends on.
type input struct {
	// want is the object's state, nil if the node needs no such object or the object does not exist.
	want *payload
	held record
	// keep: nothing may be removed now, as it is not certain that the node is gone for good.
	keep bool
	// acked is the stream sequence up to which the node has everything on disk.
	acked uint64
}

func decide(in input) action {
	held := in.held
	switch {
	case in.want != nil && (held.sequence == 0 || held.deleted):
		return publish
	case in.want != nil && (held.uid != in.want.uid || held.digest != in.want.digest):
		return publish
	case in.want != nil || held.sequence == 0:
		return nothing
	case !held.deleted && in.keep:
		return nothing
	case !held.deleted:
		return tombstone
	case held.sequence <= in.acked:
		return purge
	default:
		return nothing
	}
}
