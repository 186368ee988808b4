// Package cloud is cloudcore put together: its connection to the hub, its place among the other replicas, and the
// controllers that publish for nodes and apply their reports.
//
// All replicas are alike. Each node has one owner among the live ones, which publishes for it and renews its lease;
// calls and reports are served by any. Nothing is kept in a replica that the next one cannot read from Kubernetes or
// from the streams.
package cloud
