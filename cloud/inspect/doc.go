// Package inspect answers people and programs how far each gateway is: GET /inspect/v1/nodes, …/nodes/NODE and
// …/nodes/NODE/objects (package api/inspect), over TLS. frond status and frond sync ask it.
//
// Any replica answers for all nodes, since nothing is kept here but the last heartbeats, which every replica hears: what is
// desired is read from the stream, what was delivered from the node's consumer, what was applied from the node's cursor, and
// the rest from Kubernetes. Asking changes nothing.
//
// Nobody is answered without credentials of the Kubernetes cluster: a client certificate of its CA, or a bearer token,
// which the apiserver reviews. The apiserver is then asked whether that user may list or get nodes, or for the names of
// objects, get nodes/sync. It is asked each time, so a right that was taken away is gone at once.
package inspect
