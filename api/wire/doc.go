// Package wire defines the data that travels between the cloud and a node: object keys and their one spelling as NATS tokens, the message,
// and the payloads of calls and heartbeats.
//
// It is plain data. It knows no NATS connection and no Kubernetes client; package streams converts messages to NATS messages.
package wire
