package desired

import (
	"time"

	"github.com/frond-edge/frond/api/wire"
)

// streamAction is the action to take on one subject of the stream.
type streamAction int

const (
	noAction streamAction = iota
	publishAction
	tombstoneAction
	purgeAction
)

// streamRecord is what the stream holds of one object, as far as this replica knows. The zero record: the subject is empty.
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
	// foreignEpoch: the message was published from another Kubernetes history than the present one.
	foreignEpoch bool
}

// recordOf returns the record of a message; cluster is the present cluster epoch.
func recordOf(m wire.Message, cluster string) streamRecord {
	return streamRecord{
		sequence: m.Sequence, deleted: m.Op == wire.Delete, uid: m.UID, digest: m.Digest, version: m.Version, ackedVersion: m.Acked, deletionReason: m.DeletionReason, madeAt: m.Time,
		foreignEpoch: m.ClusterEpoch != cluster,
	}
}

// decisionInput is everything that a decision about one object at one node depends on.
type decisionInput struct {
	// want is the object's state; nil if the node needs no such object or the object does not exist.
	want      *payload
	published streamRecord
	// retain: nothing may be removed now, as it is not certain that the node is gone permanently.
	retain bool
	// ackedSequence is the stream sequence up to which the node has all messages on disk.
	ackedSequence uint64
	// purgeable: a tombstone is old enough to be purged.
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
