// Package streams is the wire between the cloud and the nodes: subjects, stream and consumer definitions, the envelope,
// and the loops that move messages. It alone knows NATS subjects; the rest of Frond speaks in wire.Message.
//
// Down, Publisher stores one message per node and object in the hub's stream DESIRED-0, and Delivery on the node
// attaches (list), then pulls from the node's own consumer (watch), saves, and only then acks. Up, Outbox stores reports
// in the leaf's own JetStream, Pump moves them to the hub, and ReportConsumer hands them to the controllers, acking what
// Kubernetes accepted. Calls are request and reply for what needs an answer now.
//
// Guarantees: what Publish or Put returned for is on disk. Every message is delivered at least once, and per object in
// order; a newer state of an object replaces an older one that waits. A message that can never be handled is copied to
// the dead letters before it is taken off its stream. Nothing here writes to Kubernetes.
//
// DESIGN.md tells what happens on each fault.
package streams
