// Package nodes tells Kubernetes which edge nodes are alive.
//
// Nodes beat over NATS; a beat is no API write. The owner of a node renews its Lease at the slowest rate that keeps it
// Ready while healthy beats arrive, and stops when they do not, so Kubernetes itself finds the node unreachable. The
// owner alone writes the condition EdgeConnected, on change only, and puts the labels of a gateway on a new Node.
//
// It keeps nothing but the time of each node's last beat, on its own clock: a new owner knows as much after one beat.
package nodes
