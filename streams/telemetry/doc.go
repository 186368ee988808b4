// Package telemetry carries the samples of devices from a node to the hub's stream TELEMETRY-0, each once and in order: Store keeps them in
// the leaf's own JetStream, Pump sends them when the link allows, Receiver stores them in the hub.
//
// All samples of a node have one consecutive number. The hub's last number of a node is the position up to which the hub has them, so a
// request that is repeated, to whichever cloudcore, stores nothing twice; and a number that is missing is a sample that was dropped.
package telemetry
