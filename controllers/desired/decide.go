package desired

import (
	"time"

	"github.com/frond-edge/frond/api/wire"
)

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
	version  string
	// acked is wire.Message.Acked.
	acked   string
	leaving wire.Leaving
	// at is when the message was made.
	at time.Time
	// foreign: it was published of another Kubernetes history than the present one.
	foreign bool
}

// recordOf is the record of a message; cluster is the present cluster epoch.
func recordOf(m wire.Message, cluster string) record {
	return record{
		sequence: m.Sequence, deleted: m.Op == wire.Delete, uid: m.UID, digest: m.Digest, version: m.Version, acked: m.Acked, leaving: m.Leaving, at: m.Time,
		foreign: m.ClusterEpoch != cluster,
	}
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
	// ripe: a tombstone is old enough to be purged.
	ripe bool
}

func decide(in input) action {
	held := in.held
	switch {
	case in.want != nil && (held.sequence == 0 || held.deleted):
		return publish
	case in.want != nil && (held.uid != in.want.uid || held.digest != in.want.digest || held.foreign):
		return publish
	case in.want != nil || held.sequence == 0:
		return nothing
	case !held.deleted && in.keep:
		return nothing
	case !held.deleted:
		return tombstone
	case held.sequence <= in.acked && in.ripe:
		return purge
	default:
		return nothing
	}
}
