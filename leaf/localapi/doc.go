// Package localapi serves the Kubernetes API on a gateway, out of the node's store.
//
// It is good enough for an unmodified kubelet, for kubectl and for client-go's informers: discovery, get, list and watch
// with resource versions, bookmarks and initial events, field and label selectors, JSON and protobuf, strategic, merge
// and JSON patches, tables, and errors as an apiserver words them. k8s.io/apiserver's endpoint handlers do the HTTP side;
// this package supplies one REST storage for all resources in the table of resources.go.
//
// What it guarantees:
//   - A resourceVersion is the store's revision plus 10^18, so none is ever one of the cloud's: it grows with each change and survives a restart.
//   - "Not known" is never "not there". 404 is answered only for what the node has proof about: its own pods and
//     itself once the store has attached, or what the cloud said is absent. Everything else that is unknown while the
//     link is down is 503.
//   - A status is in the outbox before it is in the store, so a crash between the two makes the kubelet send it again
//     and never lose it. Reports of one object leave in the order of its writes.
//   - What is not the node's to write (all but its Node, CSINode, pod statuses, leases and events) goes to the cloud
//     as a call, byte for byte, and the answer comes back as it is.
//
// It is longer than a package of this house should be: it takes the place of an apiserver. A quarter of it is what kubectl
// prints, which becomes a package of its own when someone else wants to print.
//
// It owns its listeners and watches, and nothing else: the store, the link and the outbox belong to others. Start blocks
// until every request has ended.
package localapi
