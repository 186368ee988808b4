// Package streams is the wire between the cloud and the nodes, over NATS. It contains no code: its packages are
//
//   - [github.com/frond-edge/frond/streams/subject]: the names of subjects, streams, buckets and accounts
//   - [github.com/frond-edge/frond/streams/topology]: the streams and consumers themselves
//   - [github.com/frond-edge/frond/streams/publish] and [github.com/frond-edge/frond/streams/deliver]: desired state, down
//   - [github.com/frond-edge/frond/streams/outbox] and [github.com/frond-edge/frond/streams/consume]: reports and events, up
//   - [github.com/frond-edge/frond/streams/chunk]: payloads too large for one message, in both directions
//   - [github.com/frond-edge/frond/streams/call]: requests and replies, commands, heartbeats
//   - [github.com/frond-edge/frond/streams/link]: whether the hub is reachable
//   - [github.com/frond-edge/frond/streams/tunnel]: byte streams
//
// They alone know NATS subjects; the rest of Frond works with wire.Message.
//
// Down, publish.Publisher stores one message per node and object in the hub's stream of the node's partition. deliver.Delivery on the node attaches
// (list), then pulls from the node's own consumer (watch), saves, and only then acks. Up, outbox.Outbox stores reports in the leaf's own
// JetStream, outbox.Pump moves them to the hub, and consume.ReportConsumer hands them to the controllers and acks the reports that
// Kubernetes accepted. Calls are request and reply, for what needs an answer at once.
//
// Guarantees: when Publish, Report or ReportEvent returns, its message is on disk. Every message is delivered at least once, and per
// object in order; a newer state of an object replaces an older one that waits. A message that can never be handled is copied to the
// dead letters before it is removed from its stream. Nothing here writes to Kubernetes.
//
// DESIGN.md describes the behaviour on each fault.
package streams
