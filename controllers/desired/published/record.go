package published

import (
	"time"

	"github.com/frond-edge/frond/api/wire"
)

// Record is what the stream holds of one object, as far as this replica knows. The zero record: the subject is empty.
type Record struct {
	Sequence uint64
	Deleted  bool
	UID      string
	Digest   string
	Version  string
	// ackedVersion is wire.Message.Acked.
	ackedVersion   string
	DeletionReason wire.DeletionReason
	// MadeAt is when the message was made.
	MadeAt time.Time
	// ForeignEpoch: the message was published from another Kubernetes history than the present one.
	ForeignEpoch bool
}

// RecordOf returns the record of a message; cluster is the present cluster epoch.
func RecordOf(m wire.Message, cluster string) Record {
	return Record{
		Sequence: m.Sequence, Deleted: m.Op == wire.Delete, UID: m.UID, Digest: m.Digest, Version: m.Version,
		ackedVersion: m.Acked, DeletionReason: m.DeletionReason, MadeAt: m.Time,
		ForeignEpoch: m.ClusterEpoch != cluster,
	}
}

// KnownVersion returns the newest version of an object that a node is known to have on disk, given that it has
// everything up to a sequence.
func (r Record) KnownVersion(acked uint64) string {
	switch {
	case r.Sequence > acked:
		return r.ackedVersion
	case r.Deleted:
		return ""
	}
	return r.Version
}

// isOwnPod reports whether a record is of a pod that runs at the node, not of a copy for a component that only reads it.
func (r Record) isOwnPod(key wire.Key) bool {
	return IsPod(key) && r.DeletionReason != wire.DeletionOfCopy
}

// IsPod reports whether a key is a pod's.
func IsPod(key wire.Key) bool { return key.Group == "" && key.Resource == "pods" }
