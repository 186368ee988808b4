// Package cloud assembles cloudcore: its connections to the hub, its clients of Kubernetes, its membership among the
// other replicas, and the controllers that publish for nodes and apply their reports.
//
// All replicas are alike. Each node has one owner among the live ones, which publishes for it and renews its lease; any
// replica serves calls and reports. A replica keeps nothing that the next one cannot read from Kubernetes or from the streams.
//
// Every part is made after the parts that it calls, and is complete when it is made: nothing is set in it later. Where
// two parts need each other, what both share is a part of its own, such as scopes.GrantTable and links.Schedule.
package cloud
