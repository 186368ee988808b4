package wire

import "time"

// Operation says what a message does to its object.
type Operation string

// The operations. Apply replaces the whole object; Delete removes it and, downwards, is called a tombstone.
const (
	Apply  Operation = "apply"
	Delete Operation = "delete"
)

// Message is one object on its way to or from a node: the whole present state of one thing, never a change of it.
type Message struct {
	Node string
	Key  Key
	Op   Operation
	// UID is the object's UID in Kubernetes; "" only where it is not known yet.
	UID string
	// Version is the object's resourceVersion where it was written: a label, compared for equality. Of a deletion downwards it is what
	// its writer had heard of the kind. A cloudcore whose cache has heard less, of the same history, decides nothing.
	Version string
	// ClusterEpoch is the id of the Kubernetes history that Version belongs to; "" upwards.
	ClusterEpoch string
	// StoreEpoch is the id of the edge store that sent the message; "" downwards.
	StoreEpoch string
	// Order is the sequence in the sender's outbox: within one StoreEpoch and object, higher is newer. 0 downwards.
	Order uint64
	// Digest is Digest of what matters of the object; the sender chooses what that is, the receiver compares only.
	Digest string
	// DeletionReason says why nobody should wonder when the object goes; on a tombstone, why nobody should that it went. "" upwards.
	DeletionReason DeletionReason
	// Acked is the newest version of the object that the node was known to have on disk when this one was published; "" if
	// none was known, and upwards. It is for people: nothing is decided by it.
	Acked string
	// Time is when the sender saw this state.
	Time time.Time
	// Object is the object's JSON. A tombstone has none; upwards a Delete may carry the object's last state.
	Object []byte
	// Sequence is the stream sequence of the message once it is stored; 0 before.
	Sequence uint64
}

// Cursor is how far an edge store has come. The zero Cursor is a new and empty store that has never attached.
type Cursor struct {
	// StoreEpoch is a random id made with an empty store.
	StoreEpoch string `json:"storeEpoch"`
	// StreamEpoch identifies the life of the hub stream that Sequence counts in; "" before the first attach.
	StreamEpoch string `json:"streamEpoch,omitempty"`
	// Sequence is the stream sequence up to which each change for this node is on disk.
	Sequence uint64 `json:"sequence"`
}

// AttachRequest is sent by a node on call.cloud.<node>.attach after each (re)connect.
type AttachRequest struct {
	Cursor
	// Instance is the process that attaches, as in Beat.
	Instance string `json:"instance,omitempty"`
	// Full asks for everything, whatever the cursor says: an audit found a difference.
	Full bool `json:"full,omitempty"`
	// Continue asks for the page after this sequence of a snapshot that did not fit in one reply; 0 starts anew.
	Continue uint64 `json:"continue,omitempty"`
	// UpTo is how much of the stream those had seen that gave the pages so far; 0 with Continue 0.
	UpTo uint64 `json:"upTo,omitempty"`
	// MaxBytes is how many bytes the node can take at a time: about the size of a page, and what is larger by itself comes
	// without its payload, to be asked for in pieces. 0 takes everything.
	MaxBytes int `json:"take,omitempty"`
	// PayloadsPending says that the node has not got all payloads yet that earlier answers left out.
	PayloadsPending bool `json:"awaits,omitempty"`
}

// AttachReply answers an AttachRequest. Either Error is set, or the rest.
type AttachReply struct {
	// Error says why the node cannot attach now; the node tries again later.
	Error string `json:"error,omitempty"`
	// StreamEpoch is the present life of the hub stream.
	StreamEpoch string `json:"streamEpoch,omitempty"`
	// Full says that the pages together hold every object of the node, so that what is not among them is deleted.
	// Otherwise they hold what changed after the cursor.
	Full bool `json:"full,omitempty"`
	// MarkerRequired says that the pages of a full snapshot must hold SnapshotMarker: the replica of the stream that answered may
	// lag behind it, and then the snapshot is not to be believed.
	MarkerRequired bool `json:"marked,omitempty"`
	// Objects is one page, in order of sequence.
	Objects []SnapshotObject `json:"objects,omitempty"`
	// Continue is non-zero if another page follows.
	Continue uint64 `json:"continue,omitempty"`
	// UpTo is the stream sequence that the page's giver had seen; after the last page the consumer delivers what comes after
	// it.
	UpTo uint64 `json:"upTo,omitempty"`
	// Subjects, on the last page of a full snapshot of several, is how many objects and markers all pages must have held
	// at least; 0 is not known.
	Subjects int `json:"subjects,omitempty"`
	// Stream and Consumer name the node's consumer; set on the last page.
	Stream   string `json:"stream,omitempty"`
	Consumer string `json:"consumer,omitempty"`
	// Window is the consumer's limit of messages in flight; set on the last page.
	Window int `json:"window,omitempty"`
}

// SnapshotObject is one stored message inside an AttachReply: its stream coordinates and the message as it is stored.
type SnapshotObject struct {
	Subject  string              `json:"subject"`
	Sequence uint64              `json:"seq"`
	Header   map[string][]string `json:"header,omitempty"`
	Data     []byte              `json:"data,omitempty"`
	// Size, if not 0, is the length of a payload that was left out for being larger than what the node takes at a time.
	Size int `json:"size,omitempty"`
}

// Heartbeat is a node's heartbeat on beat.<node>. It is lossy: only the newest counts.
type Heartbeat struct {
	Cursor
	// Healthy says that the kubelet renewed its lease in time; cloudcore renews the Node's Lease only then.
	Healthy bool `json:"healthy"`
	// Outbox is the number of reports that wait at the node.
	Outbox uint64 `json:"outbox"`
	// Version is edgecore's version.
	Version string `json:"version,omitempty"`
	// Instance is random and made by each process of an agent; "" from an older one. Two that live have a copied disk.
	Instance string `json:"instance,omitempty"`
	// Since is for how many milliseconds the process has been served: since its first attach. 0: not yet.
	Since int64 `json:"since,omitempty"`
	// Probe repeats the question that this heartbeat answers.
	Probe string `json:"who,omitempty"`
	// Fenced says that the process is shut out, so that the heartbeat is its own and not the node's.
	Fenced bool `json:"fenced,omitempty"`
	// Inventory sums up the cloud's objects in the store, at the cursor; nil if this beat has none.
	Inventory *Inventory `json:"census,omitempty"`
	// Deleted are the objects that were deleted at the node, which the cloud may still hold; they are not in Census.
	Deleted []string `json:"deleted,omitempty"`
}

// KubeRequest is one Kubernetes API request that a node cannot answer from its store, sent on call.cloud.<node>.kube.
// cloudcore performs it as the node (system:node:<name>), so Kubernetes' authorizers judge it.
type KubeRequest struct {
	Method      string `json:"method"`
	Path        string `json:"path"`
	Query       string `json:"query,omitempty"`
	ContentType string `json:"contentType,omitempty"`
	Accept      string `json:"accept,omitempty"`
	Body        []byte `json:"body,omitempty"`
	// Token is the bearer token of the program at the node that asks; Kubernetes then judges it and nobody else. "" asks as
	// the node.
	Token string `json:"token,omitempty"`
	// Wait is for how many milliseconds a watch may wait for its first change, on call.cloud.<node>.watch alone: Path is a
	// collection, Query has its resourceVersion, and the reply's body is the changes so far, one JSON document each, maybe none.
	Wait int64 `json:"wait,omitempty"`
	// MaxBytes is how many bytes the node can take at a time: a watch is answered with fewer changes, one at least, and what is larger
	// by itself is refused with 413. 0 takes everything.
	MaxBytes int `json:"take,omitempty"`
}

// KubeReply answers a KubeRequest with what the apiserver answered. Code 0 means it could not be asked; see Error.
type KubeReply struct {
	Code        int    `json:"code"`
	ContentType string `json:"contentType,omitempty"`
	Body        []byte `json:"body,omitempty"`
	Error       string `json:"error,omitempty"`
}
