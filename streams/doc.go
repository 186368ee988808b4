// Package streams moves messages between the cloud and the nodes over NATS. It defines the subjects, streams, consumers and the envelope,
// and runs the loops that move messages. It alone knows NATS subjects; the rest of Frond works with wire.Message.
//
// Down, Publisher stores one message per node and object in the hub's stream DESIRED-0. Delivery on the node attaches (list), then pulls
// from the node's own consumer (watch), saves, and only then acks. Up, Outbox stores reports in the leaf's own JetStream, Pump moves them
// to the hub, and ReportConsumer hands them to the controllers and acks the reports that Kubernetes accepted. Calls are request and reply,
// for what needs an answer at once.
//
// Guarantees: when Publish, Report or ReportEvent returns, its message is on disk. Every message is delivered at least once, and per
// object in order; a newer state of an object replaces an older one that waits. A message that can never be handled is copied to the
// dead letters before it is removed from its stream. This package writes nothing to Kubernetes.
//
// DESIGN.md describes the behaviour on each fault.
package streams
