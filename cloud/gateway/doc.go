// Package gateway is the way of kube-apiserver and of Prometheus to the nodes.
//
// To kube-apiserver it is an HTTP CONNECT proxy (EgressSelectorConfiguration, selection "cluster"): a target that is the
// name of an edge node, or its tunnel address, becomes a tunnel to that node, and so does the address of a pod there, or of a Service whose
// endpoints are all on edge nodes; any other target is dialled as it is. TLS is end to end between
// the apiserver and the kubelet, so who may do what is judged by Kubernetes alone, and the gateway sees only bytes. To
// Prometheus it is an HTTPS server of the few paths that hold metrics, for those whom Kubernetes lets read nodes/metrics
// or nodes/stats; metrics-server is one of those. To a kube-apiserver that knows no proxy it is a port for each node, which
// leads to its kubelet.
//
// It guarantees: what is opened to a node ends as soon as Kubernetes says that the node is cut off, deleted, or made
// anew under the same name; every open, end and refusal is one line of the log and counted; a refusal says why, in words
// that reach the user of kubectl. It keeps nothing: any replica serves any stream, and a stream ends with its replica.
package gateway
