// Package autonomy keeps Kubernetes from evicting the pods of a gateway that cannot be reached, where the Node asks for
// it with the annotation frond.io/autonomy: a duration, or "forever".
//
// Kubernetes evicts by tolerations: each pod gets 300 s for the taints not-ready and unreachable. This package gives the
// pods of an annotated Node the time that the annotation names, as soon as they are bound, so that it holds whenever the
// link breaks. What a pod had before is kept in an annotation of the pod, and given back when the Node's goes. Pods whose
// own tolerations last longer are left alone, and so is every other taint: a drained or cordoned gateway is as any node.
//
// Only the owner of a node writes. It adds and restores; a toleration that the pod never had can't be taken away again
// (Kubernetes forbids it), and then gets the default of 300 s.
package autonomy
