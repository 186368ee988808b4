// Package ports gives each edge node a port of its own at the address of the cloudcores, for a kube-apiserver that cannot
// be told of a proxy.
//
// It guarantees: no two nodes have one port, however many cloudcores give them out, and a node keeps its port as long as it
// exists. The ports are one ConfigMap, node to port, and who changes it names the version it has read. It is not the Node,
// since a node may write that: it could name a port of another's and get what is meant for it. A port of a node that is gone
// is given away only when no other is free.
package ports
