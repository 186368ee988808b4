// Package inspect reports how far each gateway has applied its desired state: GET /inspect/v1/nodes, …/nodes/NODE and
// …/nodes/NODE/objects (package api/inspect), over TLS. frond status and frond sync use it.
//
// Any replica answers for all nodes, since the only state kept here is the last heartbeats, which every replica
// receives. What is desired is read from the stream, what was delivered from the node's consumer, what was applied from
// the node's cursor, and the rest from Kubernetes. A request changes nothing.
//
// A request needs credentials of the Kubernetes cluster: a client certificate of its CA, or a bearer token, which the
// apiserver reviews. The apiserver is then asked whether that user may list or get nodes, or for the names of objects,
// get nodes/sync. It is asked each time, so a right that was revoked has no effect any more at once.
package inspect
