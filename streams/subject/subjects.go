// Package subject names the subjects, streams, buckets and accounts of Frond, and what a node may publish and subscribe to. No other
// package spells a NATS subject.
package subject

import (
	"fmt"
	"strings"

	"github.com/frond-edge/frond/api/wire"
)

// Plane is the first token of a subject: the kind of its traffic.
type Plane string

// The planes that carry objects; their subjects are <plane>.<node>.<group>.<resource>.<namespace>.<name>.
const (
	Desired Plane = "desired" // cloud to node, last value per object, durable
	Report  Plane = "report"  // node to cloud, last value per object, durable
	Event   Plane = "event"   // node to cloud, bounded, oldest dropped first
)

// The verbs of call.cloud.<node>.<verb>.
const (
	VerbAttach = "attach" // wire.AttachRequest, wire.AttachReply
	VerbPiece  = "piece"  // wire.PieceRequest, bytes
	VerbPart   = "part"   // wire.PartRequest and bytes, wire.PartReply
	VerbKube   = "kube"   // wire.KubeRequest, wire.KubeReply
	VerbWatch  = "watch"  // wire.KubeRequest, wire.KubeReply: waits for an event; see WatchCallTimeout
	VerbPing   = "ping"   // empty, empty: proves the whole path
	VerbScopes = "scopes" // wire.ScopesRequest, wire.ScopesReply
	// VerbTelemetry carries samples of devices: a header line and compressed lines (package streams/telemetry), telemetry.Reply.
	VerbTelemetry = "telemetry"
	// VerbMessages carries messages of MQTT apps, in the same form; telemetry.Reply.
	VerbMessages = "messages"
	VerbSame     = "same" // wire.SameRequest, wire.SameReply
)

// The first tokens of subjects, and the token that stands for each node.
const (
	AllNodes         = "*"
	HeartbeatPrefix  = "beat."
	CallPrefix       = "call.cloud."
	DeadLetterPrefix = "dead."
	OutboxPrefix     = "outbox."
	PartPrefix       = "part."
	TelemetryPrefix  = "telemetry."
	MessagesPrefix   = "messages."
)

// Of returns the subject of one object of a node.
func Of(plane Plane, node string, key wire.Key) string {
	return string(plane) + "." + wire.Escape(node) + "." + key.String()
}

// Filter matches every object of a node on a plane.
func Filter(plane Plane, node string) string {
	return string(plane) + "." + wire.Escape(node) + ".>"
}

// Parse is the inverse of Of. It refuses any other subject with wire.ErrToken.
func Parse(subject string) (plane Plane, node string, key wire.Key, err error) {
	first, rest, ok := strings.Cut(subject, ".")
	token, suffix, more := strings.Cut(rest, ".")
	plane = Plane(first)
	if !ok || !more || (plane != Desired && plane != Report && plane != Event) {
		return "", "", wire.Key{}, fmt.Errorf("%w: %.120q is not the subject of an object", wire.ErrToken, subject)
	}
	if node, err = parseNodeToken(token); err != nil {
		return "", "", wire.Key{}, err
	}
	if key, err = wire.ParseKey(suffix); err != nil {
		return "", "", wire.Key{}, err
	}
	return plane, node, key, nil
}

// HeartbeatSubject is the subject of a node's wire.Heartbeat.
func HeartbeatSubject(node string) string { return HeartbeatPrefix + wire.Escape(node) }

// CallSubject is the subject of a node's call, which any cloudcore answers.
func CallSubject(node, verb string) string { return CallPrefix + wire.Escape(node) + "." + verb }

// DeadLetterSubject is the subject under which a node, or "cloud", stores messages that can never be handled.
func DeadLetterSubject(from string, plane Plane) string {
	return DeadLetterPrefix + wire.Escape(from) + "." + string(plane)
}

// InboxPrefix is the prefix of every reply subject of a node; its calls are answered nowhere else.
func InboxPrefix(node string) string { return "_INBOX." + wire.Escape(node) }

// OutboxSubject is the subject of a report in the leaf's own JetStream. It differs from the hub's subject so that the hub's interest never
// draws the report over the link past the outbox.
func OutboxSubject(plane Plane, node string, key wire.Key) string {
	return OutboxPrefix + Of(plane, node, key)
}

// LeafTelemetrySubject is the subject of the samples that wait in a node's own JetStream.
const LeafTelemetrySubject = OutboxPrefix + "telemetry"

// SampleSubject is the subject of the samples of one property of a device in the hub.
func SampleSubject(node, namespace, device, property string) string {
	return TelemetryPrefix + wire.Escape(node) + "." + wire.Escape(namespace) + "." + wire.Escape(device) + "." + wire.Escape(property)
}

// NodeSamples matches all samples of a node in the hub.
func NodeSamples(node string) string { return TelemetryPrefix + wire.Escape(node) + ".>" }

// LeafMessagesSubject is the subject of the messages of apps that wait in a node's own JetStream.
const LeafMessagesSubject = OutboxPrefix + "messages"

// MessageSubject is the subject in the hub of what apps publish on an MQTT topic: each of its levels is a token. wire.Escape writes what NATS does
// not allow, and "$", which belongs to NATS at the start of a subject, stays readable within it.
func MessageSubject(node, topic string) string {
	levels := strings.Split(topic, "/")
	for i, level := range levels {
		levels[i] = escapeLevel(level)
	}
	return MessagesPrefix + wire.Escape(node) + "." + strings.Join(levels, ".")
}

func escapeLevel(level string) string {
	rest, dollar := strings.CutPrefix(level, "$")
	if dollar && rest != "" {
		return "$" + wire.Escape(rest)
	}
	return wire.Escape(level)
}

// MessageFilters returns the subjects in the hub of what apps of a node publish on the topics that an MQTT filter matches. No two of them overlap. The
// filter must be valid: + and # are levels of their own, and # is the last one.
func MessageFilters(node, filter string) []string {
	levels := strings.Split(filter, "/")
	last := len(levels) - 1
	all := levels[last] == "#"
	for i, level := range levels {
		switch {
		case level == "+":
			levels[i] = "*"
		case !all || i != last:
			levels[i] = escapeLevel(level)
		}
	}
	prefix := MessagesPrefix + wire.Escape(node) + "."
	switch {
	case !all:
		return []string{prefix + strings.Join(levels, ".")}
	case last == 0:
		return []string{prefix + ">"}
	}
	parent := prefix + strings.Join(levels[:last], ".")
	return []string{parent, parent + ".>"} // as in MQTT, a/# matches a
}

// NodeMessages matches all messages of a node in the hub.
func NodeMessages(node string) string { return MessagesPrefix + wire.Escape(node) + ".>" }

// NodeOf returns whose sample or message a subject of the hub is.
func NodeOf(subject string) (string, error) {
	_, rest, ok := strings.Cut(subject, ".")
	token, _, more := strings.Cut(rest, ".")
	if !ok || !more {
		return "", fmt.Errorf("subject %q names no node", subject)
	}
	return parseNodeToken(token)
}

// parseNodeToken parses a node token and refuses any spelling except that of wire.Escape.
func parseNodeToken(token string) (string, error) {
	node, err := wire.Unescape(token)
	if err != nil {
		return "", err
	}
	if node == "" || wire.Escape(node) != token {
		return "", fmt.Errorf("%w: node %.120q", wire.ErrToken, token)
	}
	return node, nil
}

// ParseHeartbeatSubject returns the node of a heartbeat's subject.
func ParseHeartbeatSubject(subject string) (string, error) {
	token, ok := strings.CutPrefix(subject, HeartbeatPrefix)
	if !ok {
		return "", fmt.Errorf("%w: %.120q is no beat", wire.ErrToken, subject)
	}
	return parseNodeToken(token)
}

// ParseCallSubject returns the node of a call's subject.
func ParseCallSubject(subject string) (node string, err error) {
	rest, ok := strings.CutPrefix(subject, CallPrefix)
	token, verb, more := strings.Cut(rest, ".")
	if !ok || !more || strings.Contains(verb, ".") {
		return "", fmt.Errorf("%w: %.120q is no call", wire.ErrToken, subject)
	}
	return parseNodeToken(token)
}

// commandPrefix precedes the node in the subject of a command.
const commandPrefix = "call.node."

// CommandSubject is the subject of a command from the cloud to a node. No node may publish on it.
func CommandSubject(node, verb string) string { return commandPrefix + wire.Escape(node) + "." + verb }
