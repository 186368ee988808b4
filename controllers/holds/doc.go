// Package holds tells people of deletions that are held back: an event and a condition on the Node, and the annotation
// wire.HeldDeletionsAnnotation, by which the hold is confirmed and found again by the next owner of the node.
//
// Only the owner of a node writes, and only at a change: a hold costs three writes to Kubernetes, a node without one none.
package holds
