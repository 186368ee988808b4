// Package addressindex answers the gateway's questions about addresses from cloudcore's cache of Kubernetes objects:
// which Nodes and pods claim an address, which endpoints a Service has, and which Node a tunnel address belongs to.
//
// It adds indices to a cache that others fill for the nodes anyway, and holds nothing else. It must be created before
// the cache starts.
package addressindex
