package wire

import "errors"

var (
	// ErrConflict reports that the stream holds another message of the subject than the writer expected; read it again.
	ErrConflict = errors.New("subject changed meanwhile")
	// ErrPermanent reports that a message can never be handled, however often it is tried: it goes to the dead letters.
	ErrPermanent = errors.New("message can never be handled")
	// ErrRefused reports that Kubernetes refused a message, which waiting alone will not change: a permission is missing, a webhook fails.
	// The message is retried for some minutes only.
	ErrRefused = errors.New("refused by Kubernetes")
	// ErrOffline reports that the hub or the cloud could not be reached; the same call may succeed later.
	ErrOffline = errors.New("the link to the cloud is down")
)

// SnapshotMarker is the key of the message that confirms that the node's whole desired state has been published to this stream at least
// once. A node gets no full snapshot without it, so an empty or half-filled stream is never read as "delete all".
func SnapshotMarker() Key {
	return Key{Group: "frond.io", Resource: "snapshots", Name: "complete"}
}
