// Package loadtest measures a real development cluster: how long a change takes from the Kubernetes API to a gateway's
// disk, how many changes a second pass, how soon a pod runs, and how much memory each part needs.
//
// A Scenario is a small type; Run owns the clusters, the order and the report. Nothing is simulated but, where it says
// hollow, the container runtime: the apiserver, the hub with three copies that sync each message, the link and the
// node's store that syncs before it acks are those of production. A delivery counts when the hub receives the node's
// ack, and only after the message was compared with the version that the apiserver gave to the change.
//
// The peer's numbers beside ours were measured on another day on a like machine; they are there for scale.
package loadtest
