// Package gateway connects kube-apiserver and Prometheus to the nodes.
//
// It serves three kinds of callers:
//   - To kube-apiserver it is an HTTP CONNECT proxy (EgressSelectorConfiguration, selection "cluster"). A target that is the
//     name of an edge node, or its tunnel address, becomes a tunnel to that node. So does the address of a pod there, or of
//     a Service whose endpoints are all on edge nodes. Any other target is dialled directly. TLS is end to end between the
//     apiserver and the kubelet: Kubernetes alone authorizes requests, and the gateway sees only bytes.
//   - To Prometheus it is an HTTPS server of the few paths that contain metrics, for users to whom Kubernetes grants reading
//     nodes/metrics or nodes/stats; metrics-server is one of them.
//   - To a kube-apiserver without a proxy it is a port for each node, which leads to the node's kubelet.
//
// Guarantees: a stream to a node ends as soon as Kubernetes reports that the node is disconnected, deleted, or created
// anew under the same name. Every open, end and refusal is logged in one line and counted. A refusal carries a reason
// that reaches the user of kubectl. It keeps no state: any replica serves any stream, and a stream ends with its replica.
package gateway
