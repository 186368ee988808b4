// Package autonomy keeps Kubernetes from evicting the pods of a gateway that cannot be reached, where the Node or a
// NodeGroup that it is in asks for it with the annotation frond.io/autonomy: a duration, or "forever". A Node's own word counts,
// of several groups' the longest.
//
// Kubernetes evicts by tolerations: each pod gets 300 s for the taints not-ready and unreachable. This package gives the
// pods of such a Node the time that the annotation names, as soon as they are bound, so that it holds whenever the
// link breaks. What a pod had before is kept in an annotation of the pod, and given back when the Node's or the group's goes. Pods whose
// own tolerations last longer are left alone, and so is every other taint: a drained or cordoned gateway is as any node.
//
// Kubernetes keeps the time of an eviction that it has planned, whatever other time the pod then tolerates. Where it has lost the
// node already, a pod therefore tolerates for ever for 10 s on its way to another time, which then begins anew.
//
// Groups that could not be read yet may ask for anything: until they are, pods of Nodes that say nothing themselves stay as they are.
//
// Only the owner of a node writes. It adds and restores; a toleration that the pod never had can't be taken away again
// (Kubernetes forbids it), and then gets the default of 300 s.
package autonomy
