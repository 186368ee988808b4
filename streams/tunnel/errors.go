package tunnel

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/frond-edge/frond/streams/tunnel/protocol"
)

var (
	// ErrOffline reports that the node is not connected: the hub knows no route to it, or it did not answer in time.
	ErrOffline = errors.New("node is not connected")
	// ErrNotServing reports that Start of the Dialer or Server has not begun, or has ended.
	ErrNotServing = errors.New("tunnel is not serving")
	// ErrTooMany reports that the node has reached its limit of streams.
	ErrTooMany = errors.New("too many streams")
)

// RefusedError reports that a node was reached and refused a new stream.
type RefusedError struct {
	Node    string
	Address netip.Addr // zero for a port of the node itself
	Port    uint16
	Code    protocol.Code
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
	Code protocol.Code
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
