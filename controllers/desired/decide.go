package desired

import (
	"time"

	"github.com/frond-edge/frond/api/wire"
)

// streamAction is what has to happen to one subject of the stream.
type streamAction int

const (
	noAction streamAction = iota
	publishAction
	tombstoneAction
	purgeAction
)

// streamRecord is what the stream holds of one object, as far as this replica knows. The zero record: nothing.
type streamRecord struct {
	sequence uint64
	deleted  bool
	uid      string
	digest   string
	version  string
	// ackedVersion is wire.Message.Acked.
	ackedVersion   string
	deletionReason wire.DeletionReason
	// madeAt is when the message was made.
	madeAt time.Time
	// foreign: it was published of another Kubernetes history than the present one.
	foreignEpoch bool
}

// recordOf is the record of a message; cluster is the present cluster epoch.
func recordOf(m wire.Message, cluster string) streamRecord {
	return streamRecord{
		sequence: m.Sequence, deleted: m.Op == wire.Delete, uid: m.UID, digest: m.Digest, version: m.Version, ackedVersion: m.Acked, deletionReason: m.DeletionReason, madeAt: m.Time,
		foreignEpoch: m.ClusterEpoch != cluster,
	}
}

// decisionInput is all that a decision about one object at one node depends on.
type decisionInput struct {
	// want is the object's state, nil if the node needs no such object or the object does not exist.
	want      *payload
	published streamRecord
	// keep: nothing may be removed now, as it is not certain that the node is gone for good.
	retain bool
	// ackedSequence is the stream sequence up to which the node has everything on disk.
	ackedSequence uint64
	// ripe: a tombstone is old enough to be purged.
	purgeable bool
}

func decide(in decisionInput) streamAction {
	held := in.published
	switch {
	case in.want != nil && (held.sequence == 0 || held.deleted):
		return publishAction
	case in.want != nil && (held.uid != in.want.uid || held.digest != in.want.digest || held.foreignEpoch):
		return publishAction
	case in.want != nil || held.sequence == 0:
		return noAction
	case !held.deleted && in.retain:
		return noAction
	case !held.deleted:
		return tombstoneAction
	case held.sequence <= in.ackedSequence && in.purgeable:
		return purgeAction
	default:
		return noAction
	}
}
