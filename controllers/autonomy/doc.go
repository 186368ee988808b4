// Package autonomy prevents Kubernetes from evicting the pods of an unreachable gateway, if the Node or a NodeGroup
// that contains it has the annotation frond.io/autonomy: a duration, or "forever". A Node's own annotation wins; of
// several groups the longest duration.
//
// Kubernetes evicts by tolerations: each pod gets 300 s for the taints not-ready and unreachable. This package gives
// the pods of such a Node the time that the annotation names, as soon as they are bound, so that it applies whenever
// the link breaks. The time that a pod had before is kept in an annotation of the pod, and restored when the annotation
// of the Node or group is removed. Pods whose own tolerations last longer are not changed, and neither is any other
// taint: a drained or cordoned gateway behaves as any node.
//
// Kubernetes keeps the time of an eviction that it has planned, whatever other time the pod then tolerates. If it
// considers the node lost already, a pod therefore tolerates without limit for 10 s before it gets another time,
// which then begins anew.
//
// Groups that could not be read yet may specify any time: until they are read, pods of Nodes without an annotation of
// their own are not changed.
//
// Only the owner of a node writes. It adds and restores; a toleration that the pod never had cannot be removed again
// (Kubernetes forbids it), and then gets the default of 300 s.
package autonomy
