package protocol

import "strings"

// Code is a reason that both ends know by name; it is also a label of metrics.
type Code string

// The codes of a node's refusals of a new stream.
const (
	CodePort     Code = "port"      // the port has no Listener
	CodeBusy     Code = "busy"      // the Listener's backlog is full
	CodeStreams  Code = "streams"   // the node has too many streams
	CodeDeclined Code = "declined"  // Incoming.Refuse
	CodeUnready  Code = "unready"   // Incoming.RefuseUnready
	CodeVersion  Code = "version"   // the two ends have no common version
	CodeStopping Code = "stopping"  // Start has ended
	CodeExists   Code = "duplicate" // the stream exists already
)

// The codes of broken streams, beside CodeVersion and CodeStopping.
const (
	CodeReset    Code = "reset"     // Conn.Reset
	CodeLost     Code = "lost"      // bytes were lost on the way
	CodeSilent   Code = "silent"    // the peer was silent for PeerTimeout
	CodeOffline  Code = "offline"   // the hub, or the leaf, has no route to the peer any more
	CodeOverrun  Code = "overrun"   // the peer sent more than its window
	CodeProtocol Code = "protocol"  // the peer violated the protocol
	CodeUnknown  Code = "unknown"   // the peer does not know the stream: it has restarted
	CodeIdle     Code = "idle"      // Config.IdleTimeout
	CodeDropped  Code = "dropped"   // Dialer.Drop
	CodeHub      Code = "transport" // the NATS connection does not take messages
)

// The reasons why messages are dropped, besides the codes above. They are labels of metrics only.
const (
	CodeGarbage Code = "garbage"  // not a tunnel frame
	CodeForeign Code = "foreign"  // another node's stream
	CodeStale   Code = "stale"    // a stream that ended less than a minute ago: normal, if few
	CodeOther   Code = "other"    // a code that only the peer knows
	CodeGivenUp Code = "given-up" // the caller of Dial stopped waiting
)

// MetricLabel returns the code, or CodeOther for one that only the peer knows: it bounds the number of metrics that a peer can create.
func (c Code) MetricLabel() string {
	switch c {
	case CodePort, CodeBusy, CodeStreams, CodeDeclined, CodeUnready, CodeVersion, CodeStopping, CodeExists, CodeReset, CodeLost, CodeSilent,
		CodeOffline, CodeOverrun, CodeProtocol, CodeUnknown, CodeIdle, CodeDropped, CodeHub, CodeGarbage, CodeForeign, CodeStale, CodeOther, CodeGivenUp:
		return string(c)
	}
	return string(CodeOther)
}

// Reason says why a stream was refused or broken. It is the payload of KindRefuse and KindReset.
type Reason struct {
	Code Code
	Text string
}

// Frame returns a frame of a kind that carries the reason.
func (r Reason) Frame(k Kind) Frame {
	return Frame{Kind: k, Payload: append(append([]byte(r.Code), 0), SanitizeText(r.Text, maxReason)...)}
}

// ParseReason parses the payload of KindRefuse and KindReset. It accepts any bytes; the result is safe for logs and terminals.
func ParseReason(payload []byte) Reason {
	code, text, _ := strings.Cut(string(payload[:min(len(payload), 2*maxReason)]), "\x00")
	return Reason{Code: Code(SanitizeText(code, maxCode)), Text: SanitizeText(text, maxReason)}
}
