// Package ports allocates a port for each edge node at the address of the cloudcores, for a kube-apiserver that cannot
// be configured to use a proxy.
//
// Guarantees: no two nodes have the same port, however many cloudcores allocate them, and a node keeps its port as long
// as it exists. The ports are one ConfigMap, node to port; each writer states the version that it has read. The port is
// not stored in the Node, since a node may write that: it could claim another node's port and receive its connections.
// The port of a node that is gone is reused only when no other is free.
package ports
