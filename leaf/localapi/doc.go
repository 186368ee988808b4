// Package localapi serves the Kubernetes API on a gateway, from the node's store.
//
// It supports an unmodified kubelet, kubectl and client-go's informers: discovery, get, list and watch with resource
// versions, bookmarks and initial events, field and label selectors, JSON and protobuf, strategic, merge and JSON patches,
// tables, and an apiserver's error messages. k8s.io/apiserver's endpoint handlers do the HTTP side; this package supplies
// one REST storage for all resources in the table of package kinds.
//
// Guarantees:
//   - A resourceVersion is the store's revision plus 10^18, so it never equals a version of the cloud. It grows with each
//     change and survives a restart.
//   - An unknown object is never reported as absent. 404 needs proof of absence: the node's own pods and Node once the
//     store has attached, or an answer of the cloud. Everything else that is unknown while the link is down is 503.
//   - A status is in the outbox before it is in the store. After a crash between the two the kubelet sends it again;
//     it is never lost. Reports of one object leave in the order of its writes.
//   - Writes that the node does not own (all but its Node, CSINode, pod statuses, leases and events) go to the cloud
//     as a call, byte for byte, and the answer is returned unchanged.
//
// Its parts that stand alone are packages below it. What remains is larger than a package of this module may be, because it
// replaces an apiserver: the REST storage, its watches and writes, who may do what, and the calls to the cloud share one
// request's state.
//
// It owns only its listeners and watches: the store, the link and the outbox have other owners. Start blocks until every
// request has ended.
package localapi
