// Package stream keeps the state of one end of a tunnel's stream: the half that receives, the half that sends, the order of its frames,
// and whether it is open.
//
// A Receiver queues bytes for their reader and grants the peer credit, a Sender counts bytes against the peer's credit, a Transmitter
// passes the frames of both on in their order, and a State is opened, broken and closed once. Each has its own lock, and none takes the
// lock of another, except that a Transmitter asks both halves. Package stream knows no NATS, subject or node.
package stream
