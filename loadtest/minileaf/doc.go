// Package minileaf is a leaf node without a server: one link to a hub's leaf listener, and one NATS client in the same process.
//
// The client (a *nats.Conn of Connect) works as on an edgecore's own leaf: its connection never breaks, what it publishes while there is no
// link is lost, and its subscriptions receive what the hub sends. A process can hold thousands: a link takes the memory of one TLS
// connection and of one client.
//
// It has no streams and no local delivery: what the client publishes goes to the hub only. A message that no subscription wants is counted
// in Counters.Unclaimed. A link on which nothing arrives for three intervals between pings is half open, and is dialled again.
package minileaf
