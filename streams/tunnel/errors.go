package tunnel

import (
	"errors"
	"fmt"
	"net/netip"
)

var (
	// ErrOffline reports that the node is not connected: the hub knows no route to it, or it did not answer in time.
	ErrOffline = errors.New("node is not connected")
	// ErrNotServing reports that Start of the Dialer or Server has not begun, or has ended.
	ErrNotServing = errors.New("tunnel is not serving")
	// ErrTooMany reports that the node has reached its limit of streams.
	ErrTooMany = errors.New("too many streams")
	// errClosedByPeer is the error of Write once the peer has closed its end and reads no more.
	errClosedByPeer = errors.New("closed by the peer")
	// errWriteClosed is the error of Write after CloseWrite.
	errWriteClosed = errors.New("write after CloseWrite")
	// errFrame reports bytes that no version of this package sends.
	errFrame = errors.New("not a tunnel frame")
	// errVersion reports a frame of another version.
	errVersion = errors.New("unknown version of the tunnel")
)

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

// The reasons why messages are dropped, besides the codes above.
const (
	codeGarbage Code = "garbage"  // not a tunnel frame
	codeForeign Code = "foreign"  // another node's stream
	codeStale   Code = "stale"    // a stream that ended less than a minute ago: normal, if few
	codeOther   Code = "other"    // a code that only the peer knows
	codeGivenUp Code = "given-up" // the caller of Dial stopped waiting
)

// metricLabel bounds the number of metrics that a peer can create.
func (c Code) metricLabel() Code {
	switch c {
	case CodePort, CodeBusy, CodeStreams, CodeDeclined, CodeUnready, CodeVersion, CodeStopping, CodeExists, CodeReset, CodeLost, CodeSilent,
		CodeOffline, CodeOverrun, CodeProtocol, CodeUnknown, CodeIdle, CodeDropped, CodeHub, codeGarbage, codeForeign, codeStale, codeOther, codeGivenUp:
		return c
	}
	return codeOther
}

// RefusedError reports that a node was reached and refused a new stream.
type RefusedError struct {
	Node    string
	Address netip.Addr // zero for a port of the node itself
	Port    uint16
	Code    Code
	Text    string // the node's text
}

func (e *RefusedError) Error() string {
	what := fmt.Sprintf("port %d", e.Port)
	if e.Address.IsValid() {
		what = netip.AddrPortFrom(e.Address, e.Port).String()
	}
	return fmt.Sprintf("node %s refused %s: %s (%s)", e.Node, what, e.Text, e.Code)
}

// BrokenError says why a stream ended without an orderly close by both ends. The bytes received before were in order; more may have been
// sent.
type BrokenError struct {
	Code Code
	Text string
	// ByPeer says that the other end broke the stream and sent Text.
	ByPeer bool
}

func (e *BrokenError) Error() string {
	if e.ByPeer {
		return fmt.Sprintf("tunnel broken by the peer: %s (%s)", e.Text, e.Code)
	}
	return fmt.Sprintf("tunnel broken: %s (%s)", e.Text, e.Code)
}
