// Package localapi serves the Kubernetes API on a gateway, from the node's store.
//
// It supports an unmodified kubelet, kubectl and client-go's informers: discovery, get, list and watch with resource
// versions, bookmarks and initial events, field and label selectors, JSON and protobuf, strategic, merge and JSON patches,
// tables, and an apiserver's error messages. k8s.io/apiserver's endpoint handlers do the HTTP side; packages query and
// nodewrite supply the REST storage of the resources in the table of package kinds.
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
// A request arrives at a listener (listen) and meets routes: package auth says who asks and whether it may, limit how much at
// a time. Then one of these answers:
//
//	query         gets, lists and watches, from the store or memory; completeness says what absence from it proves
//	nodewrite     writes of the node's own objects, reported and then stored
//	forward       everything else about objects: the cloud's answer, or the last one and local reviews without a link
//	relay         watches of leases, events and certificate requests, which are not stored
//	podproxy      logs and commands, by the kubelet
//	catalog, discovery, issuer, admin   paths that are not resources
//
// This package has the routes and puts the parts together. The store, the link and the outbox have other owners. Start blocks
// until every request has ended.
package localapi
