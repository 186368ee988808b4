package streams

import (
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/tunnel"
)

// NodePermissions lists all that a node's NATS user may publish to and subscribe to on the hub, and nothing more: its
// own subjects, its own consumer and its own inbox. Allow lists only; nothing relies on a deny.
func NodePermissions(node string) (publish, subscribe []string) {
	n := wire.Escape(node)
	tunnelOut, tunnelIn := tunnel.Permissions(node)
	stream := DesiredStream
	publish = []string{
		Filter(Report, node),
		Filter(Event, node),
		BeatSubject(node),
		// Not ".*": nats-server 2.15.2 then never tells the leaf that cloudcore listens on call.cloud.*.* (the last
		// wildcard of an allow list does not match the last wildcard of a subscription).
		callPrefix + n + ".>",
		deadPrefix + n + ".*",
		"$JS." + HubDomain + ".API.CONSUMER.MSG.NEXT." + stream + "." + n,
		"$JS.API.CONSUMER.MSG.NEXT." + stream + "." + n,
		"$JS." + HubDomain + ".API.CONSUMER.INFO." + stream + "." + n,
		"$JS.API.CONSUMER.INFO." + stream + "." + n,
		"$JS.ACK." + stream + "." + n + ".>",
		tunnelOut,
	}
	subscribe = []string{
		"call.node." + n + ".*",
		tunnelIn,
		InboxPrefix(node) + ".>",
	}
	return publish, subscribe
}
