// Package swarm runs simulated gateways: thousands in one process, each of which is a gateway to the hub, to cloudcore and to Kubernetes.
//
// A gateway joins with a bootstrap token, has a key, a link, a Node, heartbeats and so a Lease. Delivery, the pump of its reports, heartbeats
// and commands are edgecore's own (package streams); the leaf below them is package minileaf, the store and the outbox are in memory, and in
// place of a kubelet a status machine (package podstate) says that pods run at once and that deleted pods end. What it leaves out: the disk,
// containers, tokens of pods, events, tunnels (the subscription is there, nothing answers) and devices.
//
// Gateways share what real ones have alone and what says nothing about the cloud: the TLS configuration, the codec, the metrics.
// Each Node has the label LabelRun with the swarm's run, and a taint of that key, so that no pod gets there that does not ask for it.
package swarm
