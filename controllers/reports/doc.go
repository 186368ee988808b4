// Package reports applies the reports of nodes to Kubernetes: the status of their pods, the end of a pod, their Node,
// the mirror pods of static pods, and events.
//
// Every write is made as the node itself (system:node:NAME), so the Node authorizer and NodeRestriction check it. A
// report about an object that is not the node's is dropped and counted before that. One write is checked this way and
// then made with cloudcore's own rights: the creation of a Node, which has the labels of a gateway from the first
// moment. Reads go to the cache, and to the apiserver with cloudcore's own rights where the cache may be behind.
//
// Any number of replicas may handle any report, late or twice. A write carries the resourceVersion that was read, and
// between the read and the write the stream is asked whether the report is still the newest of its object. An old
// report therefore never replaces a newer one: either the newer one is in the stream already, or it changes the
// version. Times in a status are the node's own.
package reports
