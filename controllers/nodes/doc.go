// Package nodes turns the heartbeats of gateways into what Kubernetes knows of a node's life: its Lease, the condition
// EdgeConnected, the condition EdgeUpToDate, and the label that makes it an edge node.
//
// A heartbeat is not an API write. The owner of a node renews its Lease with a heartbeat that says the kubelet is well, if
// the last renewal is 10 s old, and not otherwise, so Kubernetes' own rules decide when a node is NotReady. Conditions and
// label are written when they are not as they should be, and a change of a condition's status is an Event of the Node.
// EdgeUpToDate speaks of delays, not of deliveries: it becomes False when a change has waited for 30 s, and changes at most
// every 30 s while the link stays as it is. A new owner listens for one silence before it calls a node lost that it has not
// heard. A revoked gateway's EdgeConnected is False at once, whatever was heard. What a heartbeat or a second costs does not grow with the number of nodes.
package nodes
