package streams

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
)

const (
	allNodes         = "*"
	heartbeatPrefix  = "beat."
	callPrefix       = "call.cloud."
	deadLetterPrefix = "dead."
	outboxPrefix     = "outbox."
	partPrefix       = "part."
)

// Subject builds the subject of one object of a node.
func Subject(plane Plane, node string, key wire.Key) string {
	return string(plane) + "." + wire.Escape(node) + "." + key.String()
}

// Filter matches every object of a node on a plane.
func Filter(plane Plane, node string) string {
	return string(plane) + "." + wire.Escape(node) + ".>"
}

// ParseSubject is the inverse of Subject. It refuses any other subject with wire.ErrToken.
func ParseSubject(subject string) (plane Plane, node string, key wire.Key, err error) {
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
func HeartbeatSubject(node string) string { return heartbeatPrefix + wire.Escape(node) }

// CallSubject is the subject of a node's call, which any cloudcore answers.
func CallSubject(node, verb string) string { return callPrefix + wire.Escape(node) + "." + verb }

// DeadLetterSubject is the subject under which a node, or "cloud", stores messages that can never be handled.
func DeadLetterSubject(from string, plane Plane) string {
	return deadLetterPrefix + wire.Escape(from) + "." + string(plane)
}

// InboxPrefix is the prefix of every reply subject of a node; its calls are answered nowhere else.
func InboxPrefix(node string) string { return "_INBOX." + wire.Escape(node) }

// outboxSubject is the subject of a report in the leaf's own JetStream. It differs from the hub's subject so that the hub's interest never
// draws the report over the link past the outbox.
func outboxSubject(plane Plane, node string, key wire.Key) string {
	return outboxPrefix + Subject(plane, node, key)
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

// parseHeartbeatSubject returns the node of a heartbeat's subject.
func parseHeartbeatSubject(subject string) (string, error) {
	token, ok := strings.CutPrefix(subject, heartbeatPrefix)
	if !ok {
		return "", fmt.Errorf("%w: %.120q is no beat", wire.ErrToken, subject)
	}
	return parseNodeToken(token)
}

// parseCallSubject returns the node of a call's subject.
func parseCallSubject(subject string) (node string, err error) {
	rest, ok := strings.CutPrefix(subject, callPrefix)
	token, verb, more := strings.Cut(rest, ".")
	if !ok || !more || strings.Contains(verb, ".") {
		return "", fmt.Errorf("%w: %.120q is no call", wire.ErrToken, subject)
	}
	return parseNodeToken(token)
}
