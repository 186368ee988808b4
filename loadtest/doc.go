// Package loadtest measures a real development cluster: the latency of a change from the Kubernetes API to a gateway's
// disk, the throughput of changes, the start time of a pod, and the memory of each component.
//
// A scenario is data: the runner owns its rounds, the clock, the acks and the statistics; what has no rounds is a function. Run owns the
// clusters, the order and the report. Only the container runtime is simulated, where it
// says hollow: the apiserver, the hub with three replicas that sync each message, the link, and the
// node's store that syncs before it acks are those of production. A delivery counts when the hub receives the node's
// ack, and only after the message was compared with the version that the apiserver gave to the change.
//
// The peer's numbers beside ours were measured on another day on a similar machine; they are there for scale.
package loadtest
