// Package cloud assembles cloudcore: its connection to the hub, its membership among the other replicas, and the
// controllers that publish for nodes and apply their reports.
//
// All replicas are alike. Each node has one owner among the live ones, which publishes for it and renews its lease; any
// replica serves calls and reports. A replica keeps nothing that the next one cannot read from Kubernetes or from the streams.
package cloud
