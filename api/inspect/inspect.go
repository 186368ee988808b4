// Package inspect defines cloudcore's reports about the gateways: the replies of cloud/inspect, which are also the stable output of frond
// status and frond sync with -o json. It holds plain data only.
package inspect

import (
	"time"

	"github.com/frond-edge/frond/api/wire"
)

const (
	// ServerName is the name in the certificate of every cloudcore, whatever address a client uses: a Service, kubectl port-forward, or
	// the address itself.
	ServerName = "cloudcore.frond-system.svc"
	// PathNodes returns Nodes, and with a node's name appended a Node. It requires the permission to list or get nodes.
	PathNodes = "/inspect/v1/nodes"
	// PathObjects is appended to the path of a node and returns Sync. The reply names Secrets, so it requires the permission to get the
	// subresource sync of that node.
	PathObjects = "/objects"
	// SyncSubresource is that subresource of nodes; it exists in RBAC rules only.
	SyncSubresource = "sync"
)

// Nodes lists all gateways, by name.
type Nodes struct {
	// Replica is the cloudcore that replied.
	Replica string `json:"replica"`
	// Live are the cloudcores that it considers alive.
	Live  []string `json:"live"`
	Nodes []Node   `json:"nodes"`
}

// Node is the state of one gateway compared with the state desired in the cloud.
type Node struct {
	Name string `json:"name"`
	// Link is the status of the Node's condition EdgeConnected, and LinkSince its last transition; Unknown before it was set.
	Link      string    `json:"link"`
	LinkSince time.Time `json:"linkSince,omitzero"`
	// Autonomy is how long the pods stay while the link is down, from the annotation of the Node or of AutonomyGroup; "" is the default of
	// Kubernetes.
	Autonomy string `json:"autonomy,omitempty"`
	// AutonomyGroup is the NodeGroup that sets Autonomy; "" is the Node itself.
	AutonomyGroup string `json:"autonomyGroup,omitempty"`
	// Owner is the cloudcore that publishes for the node.
	Owner string `json:"owner"`
	// Progress is nil if the hub could not be read; Problem then gives the reason.
	Progress *Progress `json:"progress,omitempty"`
	Problem  string    `json:"problem,omitempty"`
	// Heartbeat is the node's last heartbeat at the replica that replied, nil if the replica has received none since it started.
	Heartbeat *Heartbeat `json:"heard,omitempty"`
	// Kubelet is the kubelet version that the Node reports.
	Kubelet string `json:"kubelet,omitempty"`
}

// Progress compares the stream of desired state with the node's own state. A message is the last change of one object. A deletion is also
// a message, until the node has it and it is purged.
type Progress struct {
	// Desired counts the messages that the stream holds for the node.
	Desired int `json:"desired"`
	// Delivered counts those that the node's consumer has sent, or that the node received otherwise; nil if unknown.
	Delivered *int `json:"delivered,omitempty"`
	// Applied counts those that are on the node's disk; nil if unknown.
	Applied *int `json:"applied,omitempty"`
	// AppliedBy is the source of Applied: AppliedByHeartbeat or AppliedByConsumer. It is "" with Applied nil.
	AppliedBy string `json:"appliedBy,omitempty"`
	// Oldest is when the cloud saw the oldest change that is not on the node's disk; zero if all are.
	Oldest time.Time `json:"oldest,omitzero"`
	// Complete says that the node's whole desired state has been published at least once.
	Complete bool `json:"complete"`
	// Sequence is the stream sequence up to which everything is on the node's disk, if it is known.
	Sequence uint64 `json:"sequence"`
	// Consumer is the node's consumer, as `nats consumer info` shows it; nil if there is none.
	Consumer *Consumer `json:"consumer,omitempty"`
}

// The sources of Progress.Applied. The heartbeat reports the node's own disk. Without one, Applied counts the acks of the consumer, which
// may be more than a wiped disk holds.
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
	// Acked says that there was an ack: the floor of a new consumer is its start, which proves nothing.
	Acked bool `json:"acked"`
	// AckPending counts sent messages without an ack, Pending messages not sent yet.
	AckPending int    `json:"ackPending"`
	Pending    uint64 `json:"pending"`
	// LastAck is when the last ack moved the floor.
	LastAck time.Time `json:"lastAck,omitzero"`
}

// Heartbeat is the content of a heartbeat, and the time of its arrival.
type Heartbeat struct {
	At     time.Time   `json:"at"`
	Cursor wire.Cursor `json:"cursor"`
	// Healthy says that the kubelet renews its lease.
	Healthy bool `json:"healthy"`
	// Outbox is the number of reports that wait at the node.
	Outbox uint64 `json:"outbox"`
	// Version is edgecore's version.
	Version string `json:"version,omitempty"`
}

// Sync is a node with each of its objects, by key.
type Sync struct {
	Node    Node     `json:"node"`
	Objects []Object `json:"objects"`
}

// State is the delivery state of one object at a node.
type State string

// The states of an object.
const (
	Synced   State = "synced"   // the desired version is on the node's disk
	Pending  State = "pending"  // the desired version is not on disk, or not known to be
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
	// Desired is the resourceVersion desired in the cloud; "" for a deletion.
	Desired string `json:"desired,omitempty"`
	// Acked is the newest resourceVersion known to be on the node's disk; "" if none is.
	Acked string `json:"acked,omitempty"`
	// Changed is when the cloud saw the desired version.
	Changed time.Time `json:"changed,omitzero"`
	// AckedAt is when a heartbeat first reported that the desired version is on disk, zero if this replica has received no such heartbeat.
	AckedAt time.Time `json:"ackedAt,omitzero"`
	// Sequence is the message's sequence in the stream.
	Sequence uint64 `json:"sequence"`
}

// Key returns the key of the object.
func (o Object) Key() wire.Key {
	return wire.Key{Group: o.Group, Resource: o.Resource, Namespace: o.Namespace, Name: o.Name}
}
