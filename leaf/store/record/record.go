// Package record describes the state of one object in the store, its checksums and its sealing. It owns no file and no
// connection: the bucket and the last-good copy each have their own encoding of a record.
package record

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/wire"
)

// ErrInvalid reports that the bytes are not a JSON object with metadata.
var ErrInvalid = errors.New("invalid object")

// Entry is one stored object.
type Entry struct {
	Key wire.Key
	// UID is the object's UID; "" if it was written here before the cloud assigned one.
	UID string
	// Version is the cloud's resourceVersion that this state is based on; "" for an object that only this node knows.
	Version string
	// ClusterEpoch is the Kubernetes history that Version belongs to.
	ClusterEpoch string
	// Sequence is the hub stream's sequence of the last message for it; 0 if the object did not come from the hub.
	Sequence uint64
	// Revision is the bucket's sequence of this state: the local resourceVersion.
	Revision uint64
	// LastGood is not zero for an object whose newest state was damaged: this entry is an older state, from a copy of that time.
	LastGood time.Time
	// Object is the object's JSON as it was written, including metadata.resourceVersion. Read only.
	Object []byte
}

// State is the state of a record's object.
type State string

const (
	// Live is the state of an object that exists.
	Live State = "live"
	// Gone is the state of an object deleted at this node whose deletion the cloud has not confirmed yet.
	Gone State = "gone"
	// Tombstone is the state of an object deleted by the cloud, or deleted here and confirmed.
	Tombstone State = "tombstone"
)

// Record is the latest state of one key. It does not change once it is committed.
type Record struct {
	Entry
	State State
	// Desired: the cloud sent this object, so a full snapshot without it deletes it.
	Desired bool
	// LastRemoteSeq is the sequence of the newest hub message for the key, within StreamEpoch. Messages below it are ignored.
	LastRemoteSeq uint64
	StreamEpoch   string
	// Salt is part of the checksum of a sealed record and is sealed with it. Without it, an attacker who guesses a Secret
	// could verify the guess by the checksum. nil for a record that is not sealed.
	Salt []byte
	// NeedsReseal: the record was read as plain text, or sealed with an older key, and must be sealed again.
	NeedsReseal bool
	// Check is the checksum of the record as written, set by Derive.
	Check [16]byte
	// nameHash is the record's part of the sum over all names, set by Derive.
	nameHash uint64
}

// Change is one message of a commit: a record, a cursor, a record that carries a new cursor, or raw bytes for quarantine. With
// none of them it only counts for its Revision.
type Change struct {
	Record *Record
	Cursor *wire.Cursor
	Raw    *nats.Msg
	// Revision is the change's sequence in the bucket; 0 before it is committed.
	Revision uint64
}

// Expires reports whether the change's message is removed after a time, so that a commit must not end with it.
func (c Change) Expires() bool { return c.Raw != nil || c.Record != nil && !c.Record.IsDurable() }

// IsDurable reports whether the record must stay on disk permanently: such records make up the sum that proves that none was lost.
func (r *Record) IsDurable() bool { return r != nil && r.State != Tombstone }

// ChecksumTerm returns the record's part of the sum over all records. A sum can be updated by one subtraction and one
// addition and does not depend on order. A lost or changed record leaves it wrong but for a chance of 2^-64.
func (r *Record) ChecksumTerm() uint64 {
	if !r.IsDurable() {
		return 0
	}
	return binary.BigEndian.Uint64(r.Check[:8])
}

// NameTerm returns the record's part of the sum over all names: that an object with this key and UID, in any version, is
// stored or was deleted here.
func (r *Record) NameTerm() uint64 {
	if !r.IsDurable() {
		return 0
	}
	return r.nameHash
}

// Derive computes the fields that follow from the others: the hub's sequence of an object that came from it, and the checksum
// over all fields except the revision, which the server assigns, and LastGood.
func (r *Record) Derive() {
	r.Sequence = 0
	if r.Desired {
		r.Sequence = r.LastRemoteSeq
	}
	name := Checksum(r.Key.String(), string(r.State), r.UID)
	r.nameHash = binary.BigEndian.Uint64(name[:8])
	r.Check = Checksum(r.Key.String(), string(r.State), r.UID, r.Version, r.ClusterEpoch, r.StreamEpoch,
		strconv.FormatUint(r.LastRemoteSeq, 10), strconv.FormatBool(r.Desired), string(r.Salt)+string(r.Object))
}

// Checksum returns a checksum over fields that also covers where each of them ends.
func Checksum(fields ...string) [16]byte {
	h := sha256.New()
	var size [8]byte
	for _, f := range fields {
		binary.BigEndian.PutUint64(size[:], uint64(len(f)))
		h.Write(size[:])
		h.Write([]byte(f))
	}
	return [16]byte(h.Sum(nil))
}

// ParseUID reads the UID from an object's JSON, or returns ErrInvalid.
func ParseUID(object []byte) (uid string, err error) {
	var o struct {
		Metadata *struct {
			UID string `json:"uid"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(object, &o); err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if o.Metadata == nil {
		return "", fmt.Errorf("%w: no metadata", ErrInvalid)
	}
	return o.Metadata.UID, nil
}

// CompareEntries orders entries by resource, namespace and name.
func CompareEntries(a, b Entry) int {
	return cmp.Or(strings.Compare(a.Key.Group, b.Key.Group), strings.Compare(a.Key.Resource, b.Key.Resource),
		strings.Compare(a.Key.Namespace, b.Key.Namespace), strings.Compare(a.Key.Name, b.Key.Name))
}
