package streams

import (
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/tunnel"
)

// NodePermissions lists all that a node's NATS user may publish to and subscribe to in its cell, and nothing more: its
// own subjects, its own consumer and its own inbox. Allow lists only; nothing relies on a deny.
func NodePermissions(node string) (publish, subscribe []string) {
	n := wire.Escape(node)
	tunnelOut, tunnelIn := tunnel.Permissions(node)
	publish = []string{
		Filter(Report, node),
		Filter(Event, node),
		HeartbeatSubject(node),
		// Not ".*": nats-server 2.15.2 then never tells the leaf that cloudcore listens on call.cloud.*.* (the last
		// wildcard of an allow list does not match the last wildcard of a subscription).
		callPrefix + n + ".>",
		deadLetterPrefix + n + ".>",
		consumerPrefix + n + ".>",
		tunnelOut,
	}
	subscribe = []string{
		commandPrefix + n + ".*",
		tunnelIn,
		InboxPrefix(node) + ".>",
	}
	return publish, subscribe
}

// LobbyPermissions lists what a link may do that has shown a key without a place: ask for one, and hear the answer. key is its
// public nkey, which stands where a node's name would.
func LobbyPermissions(key string) (publish, subscribe []string) {
	return []string{callPrefix + wire.Escape(key) + ".>"}, []string{InboxPrefix(key) + ".>"}
}
