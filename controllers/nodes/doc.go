// Package nodes translates the heartbeats of gateways into node state in Kubernetes: the Lease, the condition
// EdgeConnected, the condition EdgeUpToDate, and the label that makes it an edge node.
//
// A heartbeat is not an API write. The owner of a node renews its Lease at a heartbeat that reports a healthy kubelet, if the
// renewal is due, and not otherwise. Kubernetes' own rules therefore decide when a node is NotReady. The period of renewals
// grows with the number of owned nodes, from 10 s on and up to a limit, so that their rate stays within a budget. A new owner
// does not know the age of a Lease, and renews it at the first heartbeat.
// Conditions and label are written when they differ from the wanted state, and a change of a condition's status creates
// an Event of the Node. EdgeUpToDate reports delays, not deliveries: it becomes False when a change has waited for 30
// s, and changes at most every 30 s while the link state is unchanged. A new owner waits for one heartbeat timeout
// before it declares a node lost that sent no heartbeat. EdgeConnected of a revoked gateway is False at once, whatever
// heartbeats arrive. The cost per heartbeat and per second does not grow with the number of nodes.
package nodes
