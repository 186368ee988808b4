package wire

import "time"

// Operation is the effect of a message on its object.
type Operation string

// The operations. Apply replaces the whole object; Delete removes it and, downwards, is called a tombstone.
const (
	Apply  Operation = "apply"
	Delete Operation = "delete"
)

// Message is one object on its way to or from a node: the whole current state of the object, never a change of it.
type Message struct {
	Node string
	Key  Key
	Op   Operation
	// UID is the object's UID in Kubernetes; "" only where it is not known yet.
	UID string
	// Version is the object's resourceVersion where it was written: a label, compared for equality. For a deletion downwards it is the
	// newest version of the kind that its writer had received. A cloudcore whose cache is older, in the same history, makes no decision.
	Version string
	// ClusterEpoch is the id of the Kubernetes history that Version belongs to; "" upwards.
	ClusterEpoch string
	// StoreEpoch is the id of the edge store that sent the message; "" downwards.
	StoreEpoch string
	// Order is the sequence in the sender's outbox: within one StoreEpoch and object, higher is newer. 0 downwards.
	Order uint64
	// Digest is the Digest of the relevant part of the object; the sender chooses that part, the receiver only compares.
	Digest string
	// DeletionReason says why a removal of the object is expected; on a tombstone, why it was expected. "" upwards.
	DeletionReason DeletionReason
	// Acked is the newest version of the object that the node was known to have on disk when this one was published; "" if none was known,
	// and upwards. It is for operators; no decision uses it.
	Acked string
	// Time is when the sender saw this state.
	Time time.Time
	// Object is the object's JSON. A tombstone has none; upwards a Delete may carry the object's last state.
	Object []byte
	// Sequence is the stream sequence of the message once it is stored; 0 before.
	Sequence uint64
}

// Cursor is the position of an edge store in the stream. The zero Cursor is a new and empty store that has never attached.
type Cursor struct {
	// StoreEpoch is a random id created with an empty store.
	StoreEpoch string `json:"storeEpoch"`
	// StreamEpoch identifies the life of the hub stream that Sequence belongs to; "" before the first attach.
	StreamEpoch string `json:"streamEpoch,omitempty"`
	// Sequence is the stream sequence up to which each change for this node is on disk.
	Sequence uint64 `json:"sequence"`
}

// AttachRequest is sent by a node on call.cloud.<node>.attach after each (re)connect.
type AttachRequest struct {
	Cursor
	// Instance is the process that attaches, as in Heartbeat.
	Instance string `json:"instance,omitempty"`
	// Full requests all objects, whatever the cursor: an audit found a difference.
	Full bool `json:"full,omitempty"`
	// Continue requests the page after this sequence of a snapshot that did not fit in one reply; 0 starts anew.
	Continue uint64 `json:"continue,omitempty"`
	// UpTo is the last sequence that the replicas of the earlier pages had seen; 0 with Continue 0.
	UpTo uint64 `json:"upTo,omitempty"`
	// MaxBytes is how many bytes the node can take at a time: about the size of a page. A larger object comes without its payload, which
	// the node requests in pieces. 0 is no limit.
	MaxBytes int `json:"take,omitempty"`
	// PayloadsPending says that the node still lacks payloads that earlier replies left out.
	PayloadsPending bool `json:"awaits,omitempty"`
}

// AttachReply answers an AttachRequest. Either Error is set, or the rest.
type AttachReply struct {
	// Error is the reason why the node cannot attach now; the node tries again later.
	Error string `json:"error,omitempty"`
	// StreamEpoch is the current life of the hub stream.
	StreamEpoch string `json:"streamEpoch,omitempty"`
	// Full says that the pages together hold every object of the node, so that any other object is deleted. Otherwise they hold the
	// changes after the cursor.
	Full bool `json:"full,omitempty"`
	// MarkerRequired says that the pages of a full snapshot must contain SnapshotMarker: the replica that answered may lag behind the
	// marker, and then the snapshot must not be used.
	MarkerRequired bool `json:"marked,omitempty"`
	// Objects is one page, in order of sequence.
	Objects []SnapshotObject `json:"objects,omitempty"`
	// Continue is non-zero if another page follows.
	Continue uint64 `json:"continue,omitempty"`
	// UpTo is the last stream sequence that the page's replica had seen; after the last page the consumer delivers the messages after it.
	UpTo uint64 `json:"upTo,omitempty"`
	// Subjects, on the last page of a full snapshot of several pages, is the least number of objects and markers that all pages must
	// contain; 0 is unknown.
	Subjects int `json:"subjects,omitempty"`
	// Stream and Consumer name the node's consumer; set on the last page.
	Stream   string `json:"stream,omitempty"`
	Consumer string `json:"consumer,omitempty"`
	// Window is the consumer's limit of messages in flight; set on the last page.
	Window int `json:"window,omitempty"`
	// RedialMax is the longest pause in seconds between two dials of a hub that cannot be reached, by the size of the fleet; set on the
	// last page. 0 is unknown, as from a cloudcore before this field.
	RedialMax int `json:"redialMax,omitempty"`
}

// SnapshotObject is one stored message inside an AttachReply: its position in the stream and the message as it is stored.
type SnapshotObject struct {
	Subject  string              `json:"subject"`
	Sequence uint64              `json:"seq"`
	Header   map[string][]string `json:"header,omitempty"`
	Data     []byte              `json:"data,omitempty"`
	// Size, if not 0, is the length of a payload that was left out because it exceeds MaxBytes.
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
	// Instance is a random id of each agent process; "" from an older one. Two live instances mean a copied disk.
	Instance string `json:"instance,omitempty"`
	// Since is the time in milliseconds since the process's first attach. 0: not attached yet.
	Since int64 `json:"since,omitempty"`
	// Probe repeats the probe that this heartbeat answers.
	Probe string `json:"who,omitempty"`
	// Fenced says that the process is fenced, so that the heartbeat speaks for the process and not for the node.
	Fenced bool `json:"fenced,omitempty"`
	// Inventory summarises the cloud's objects in the store, at the cursor; nil if this heartbeat has none.
	Inventory *Inventory `json:"census,omitempty"`
	// Deleted are the objects that were deleted at the node and that the cloud may still hold; they are not in Inventory.
	Deleted []string `json:"deleted,omitempty"`
}

// KubeRequest is one Kubernetes API request that a node cannot answer from its store, sent on call.cloud.<node>.kube. cloudcore performs
// it as the node (system:node:<name>), so Kubernetes' authorizers decide about it.
type KubeRequest struct {
	Method      string `json:"method"`
	Path        string `json:"path"`
	Query       string `json:"query,omitempty"`
	ContentType string `json:"contentType,omitempty"`
	Accept      string `json:"accept,omitempty"`
	Body        []byte `json:"body,omitempty"`
	// Token is the bearer token of the calling program at the node; Kubernetes then decides by the token alone. "" acts as the node.
	Token string `json:"token,omitempty"`
	// Wait is how many milliseconds a watch may wait for its first change, on call.cloud.<node>.watch only: Path is a collection, Query
	// has its resourceVersion, and the reply's body is the changes so far, one JSON document each, possibly none.
	Wait int64 `json:"wait,omitempty"`
	// MaxBytes is how many bytes the node can take at a time: a watch returns fewer changes, at least one, and a reply that still exceeds
	// the limit is refused with 413. 0 is no limit.
	MaxBytes int `json:"take,omitempty"`
}

// KubeReply carries the apiserver's reply to a KubeRequest. Code 0 means that the apiserver could not be reached; see Error.
type KubeReply struct {
	Code        int    `json:"code"`
	ContentType string `json:"contentType,omitempty"`
	Body        []byte `json:"body,omitempty"`
	Error       string `json:"error,omitempty"`
}
