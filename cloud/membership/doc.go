// Package membership keeps the live set of cloudcore replicas: their leases in the hub, which of them owns a node, and
// what must happen when a replica or a server of the hub fails.
//
// Members decides ownership by rendezvous hashing over the live set and gives each uninterrupted ownership a term.
// PeerFencer closes the hub connections of a replica that stopped without leaving. HubWatcher detects the loss of a
// server of the hub. Both make the nodes repeat the requests that were lost with it. Ownership distributes the work and
// does not protect it: two owners for a moment are harmless.
package membership
