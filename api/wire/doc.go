// Package wire holds what travels between the cloud and a node: object keys and their one spelling as NATS tokens, the
// message, and the payloads of calls and heartbeats.
//
// It is plain data. It knows no NATS connection and no Kubernetes client; how a message becomes a NATS message is the
// business of package streams.
package wire
