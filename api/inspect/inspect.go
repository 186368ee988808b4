// Package inspect holds what cloudcore tells people and programs about the gateways: the answers of cloud/inspect, which
// are also the stable output of frond status and frond sync with -o json. Plain data.
package inspect

import (
	"time"

	"github.com/frond-edge/frond/api/wire"
)

const (
	// ServerName is the name in the certificate of every cloudcore, whatever address it is reached at: through a Service,
	// through kubectl port-forward, or directly.
	ServerName = "cloudcore.frond-system.svc"
	// PathNodes answers with Nodes, and with a node's name behind it with a Node. It needs the right to list or get nodes.
	PathNodes = "/inspect/v1/nodes"
	// PathObjects stands behind the path of a node and answers with Sync. As it names Secrets, it needs the right to get
	// the subresource sync of that node.
	PathObjects = "/objects"
	// SyncSubresource is that subresource of nodes; it exists in rules only.
	SyncSubresource = "sync"
)

// Nodes are all gateways, by name.
type Nodes struct {
	// Replica is the cloudcore that answered.
	Replica string `json:"replica"`
	// Live are the cloudcores that it sees.
	Live  []string `json:"live"`
	Nodes []Node   `json:"nodes"`
}

// Node is how far one gateway is with what the cloud wants there.
type Node struct {
	Name string `json:"name"`
	// Link is the status of the Node's condition EdgeConnected, and LinkSince when it last changed; Unknown before it was set.
	Link      string    `json:"link"`
	LinkSince time.Time `json:"linkSince,omitzero"`
	// Autonomy is how long the pods stay while the link is down, as the annotation of the Node or of AutonomyGroup says; "" as
	// Kubernetes has it.
	Autonomy string `json:"autonomy,omitempty"`
	// AutonomyGroup is the NodeGroup that says so; "" is the Node itself.
	AutonomyGroup string `json:"autonomyGroup,omitempty"`
	// Owner is the cloudcore that publishes for the node.
	Owner string `json:"owner"`
	// Progress is nil if the hub could not be asked; Problem then says why.
	Progress *Progress `json:"progress,omitempty"`
	Problem  string    `json:"problem,omitempty"`
	// Heartbeat is the node's last heartbeat at the replica that answered, nil if that has heard none since it started.
	Heartbeat *Heartbeat `json:"heard,omitempty"`
	// Kubelet is the version that the Node reports.
	Kubelet string `json:"kubelet,omitempty"`
}

// Progress compares what the stream of desired state holds for a node with how far the node is. A message is the last
// change of one object; its deletion is one, too, until the node has it and it is purged.
type Progress struct {
	// Desired counts the messages that the stream holds for the node.
	Desired int `json:"desired"`
	// Delivered counts those of them that its consumer has sent, or that it got otherwise; nil if that is not known.
	Delivered *int `json:"delivered,omitempty"`
	// Applied counts those of them that are on the node's disk; nil if that is not known.
	Applied *int `json:"applied,omitempty"`
	// AppliedBy says who told: AppliedByHeartbeat or AppliedByConsumer. It is "" with Applied nil.
	AppliedBy string `json:"appliedBy,omitempty"`
	// Oldest is when the cloud saw the oldest change that is not on the node's disk; zero if all are.
	Oldest time.Time `json:"oldest,omitzero"`
	// Complete says that everything the node needs has been published at least once.
	Complete bool `json:"complete"`
	// Sequence is the stream sequence up to which everything is on the node's disk, if it is known.
	Sequence uint64 `json:"sequence"`
	// Consumer is the node's consumer, as `nats consumer info` shows it; nil if there is none.
	Consumer *Consumer `json:"consumer,omitempty"`
}

// The sources of Progress.Applied. The heartbeat tells of the node's own disk. Without one the acks that the consumer saw
// are taken, which may be more than a wiped disk holds.
const (
	AppliedByHeartbeat = "heartbeat"
	AppliedByConsumer  = "consumer"
)

// Consumer is the state of the node's consumer in the hub.
type Consumer struct {
	Stream string `json:"stream"`
	Name   string `json:"name"`
	// Delivered and AckFloor are stream sequences.
	Delivered uint64 `json:"delivered"`
	AckFloor  uint64 `json:"ackFloor"`
	// Acked says that there was an ack at all: the floor of a new consumer is where it starts, which proves nothing.
	Acked bool `json:"acked"`
	// AckPending counts what was sent and not acked, Pending what was not sent.
	AckPending int    `json:"ackPending"`
	Pending    uint64 `json:"pending"`
	// LastAck is when the last ack moved the floor.
	LastAck time.Time `json:"lastAck,omitzero"`
}

// Heartbeat is what a heartbeat said, and when it came.
type Heartbeat struct {
	At     time.Time   `json:"at"`
	Cursor wire.Cursor `json:"cursor"`
	// Healthy says that the kubelet renews its lease.
	Healthy bool `json:"healthy"`
	// Outbox is the number of reports that wait at the node.
	Outbox uint64 `json:"outbox"`
	// Version is edgecore's.
	Version string `json:"version,omitempty"`
}

// Sync is a node with each of its objects, by key.
type Sync struct {
	Node    Node     `json:"node"`
	Objects []Object `json:"objects"`
}

// State is how far one object is at a node.
type State string

// The states of an object.
const (
	Synced   State = "synced"   // the desired version is on the node's disk
	Pending  State = "pending"  // it is not, or not known to be
	Deleting State = "deleting" // the node must delete the object
)

// Object is one object that the stream holds for a node.
type Object struct {
	Group     string `json:"group"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	State     State  `json:"state"`
	// Desired is the resourceVersion that the cloud wants there; "" for a deletion.
	Desired string `json:"desired,omitempty"`
	// Acked is the newest resourceVersion known to be on the node's disk; "" if none is.
	Acked string `json:"acked,omitempty"`
	// Changed is when the cloud saw the desired version.
	Changed time.Time `json:"changed,omitzero"`
	// AckedAt is when a heartbeat first told that the desired version is on disk, zero if this replica did not hear it.
	AckedAt time.Time `json:"ackedAt,omitzero"`
	// Sequence is the message's in the stream.
	Sequence uint64 `json:"sequence"`
}

// Key names the object.
func (o Object) Key() wire.Key {
	return wire.Key{Group: o.Group, Resource: o.Resource, Namespace: o.Namespace, Name: o.Name}
}
