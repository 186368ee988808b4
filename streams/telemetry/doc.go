// Package telemetry carries the samples of devices, and the messages of apps, from a node to the hub's streams TELEMETRY-0 and MESSAGES-0, each once and
// in order: Store keeps them in the leaf's own JetStream, Pump sends them when the link allows, Receiver stores them in the hub.
//
// Samples and messages are two kinds, with streams, numbers and calls of their own: neither waits for the other. All lines of a kind of a node have one
// consecutive number. The hub's last number of a node is the position up to which the hub has them, so a request that is repeated, to whichever
// cloudcore, stores nothing twice; and a number that is missing is a line that was dropped. The node writes down what is sent, because the
// hub drops old messages.
package telemetry
