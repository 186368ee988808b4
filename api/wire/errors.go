package wire

import "errors"

var (
	// ErrConflict says that the stream holds another message of the subject than the writer believed; read it again.
	ErrConflict = errors.New("subject changed meanwhile")
	// ErrPermanent says that a message can never be handled, however often it is tried: it goes to the dead letters.
	ErrPermanent = errors.New("message can never be handled")
	// ErrRefused says that Kubernetes said no, which waiting alone will not change: a right is missing, a webhook fails. The
	// same message is tried again for some minutes only.
	ErrRefused = errors.New("refused by Kubernetes")
	// ErrOffline says that the hub or the cloud could not be reached; the same call may succeed later.
	ErrOffline = errors.New("the link to the cloud is down")
)

// SnapshotMarker is the key of the message that says: everything the node needs has been published to this stream at
// least once. A node is given no full snapshot without it, so an empty or half-filled stream never reads as "delete all".
func SnapshotMarker() Key {
	return Key{Group: "frond.io", Resource: "snapshots", Name: "complete"}
}
