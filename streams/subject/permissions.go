package subject

import (
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/tunnel/protocol"
)

// NodePermissions lists all subjects that a node's NATS user may publish to and subscribe to in its cell: its own subjects, its own
// consumer and its own inbox. These are allow lists only; nothing relies on a deny.
func NodePermissions(node string) (publish, subscribe []string) {
	n := wire.Escape(node)
	tunnelOut, tunnelIn := protocol.Permissions(node)
	publish = []string{
		Filter(Report, node),
		Filter(Event, node),
		HeartbeatSubject(node),
		// Not ".*": nats-server 2.15.2 then never tells the leaf that cloudcore listens on call.cloud.*.* (the last wildcard of an allow
		// list does not match the last wildcard of a subscription).
		CallPrefix + n + ".>",
		DeadLetterPrefix + n + ".>",
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

// LobbyPermissions lists the subjects of a link with a key that has not been admitted: it may request admission and receive the reply. key
// is its public nkey, which takes the place of a node's name.
func LobbyPermissions(key string) (publish, subscribe []string) {
	return []string{CallPrefix + wire.Escape(key) + ".>"}, []string{InboxPrefix(key) + ".>"}
}
