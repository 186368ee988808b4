// Package nodes turns the heartbeats of gateways into what Kubernetes knows of a node's life: its Lease, the condition
// EdgeConnected, and the label that makes it an edge node.
//
// A heartbeat is not an API write. The owner of a node renews its Lease with a heartbeat that says the kubelet is well, if
// the last renewal is 10 s old, and not otherwise, so Kubernetes' own rules decide when a node is NotReady. Condition and
// label are written when they are not as they should be. A new owner listens for one silence before it calls a node lost
// that it has not heard. What a heartbeat or a second costs does not grow with the number of nodes.
package nodes
