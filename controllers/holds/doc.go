// Package holds reports held deletions to operators: an event and a condition on the Node, and the annotation
// wire.HeldDeletionsAnnotation, with which the operator confirms the hold and the next owner of the node finds it.
//
// Only the owner of a node writes, and only at a change: a hold costs three writes to Kubernetes, a node without one none.
package holds
