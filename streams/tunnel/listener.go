package tunnel

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/streams/tunnel/protocol"
)

// Listener is a net.Listener on a node's port, or for addresses.
type Listener struct {
	server  *Server
	addr    Addr
	waiting chan *Conn

	closeOnce sync.Once
	closed    chan struct{} // closes with Close or when Start ends
}

// enqueue adds a stream to the backlog; if it is full, enqueue first removes the streams that the cloud gave up. The caller holds portsMu,
// so there is no other writer.
func (l *Listener) enqueue(c *Conn) bool {
	for try := range 2 {
		select {
		case l.waiting <- c:
			return true
		default:
		}
		if try > 0 {
			break
		}
		for range len(l.waiting) {
			select {
			case waits := <-l.waiting:
				if waits.state.Status().Pending() {
					l.waiting <- waits // there is room: it was just received from the channel
				}
			default: // Accept drains the channel
			}
		}
	}
	return false
}

// Incoming is a stream that the cloud requests. Call Accept or Refuse, within Config.OpenTimeout.
type Incoming struct{ conn *Conn }

// Next waits for a stream without accepting it, so that the node can connect onwards first. It returns net.ErrClosed after Close and after
// the end of the Server's Start.
func (l *Listener) Next() (*Incoming, error) {
	for {
		select {
		case <-l.closed:
			return nil, &net.OpError{Op: "accept", Net: l.addr.Network(), Addr: l.addr, Err: net.ErrClosed}
		case c := <-l.waiting:
			if c.state.Status().Pending() { // otherwise the cloud gave up
				return &Incoming{conn: c}, nil
			}
		}
	}
}

// Accept waits for a stream and accepts it.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		in, err := l.Next()
		if err != nil {
			return nil, err
		}
		if c, err := in.Accept(); err == nil {
			return c, nil
		}
	}
}

// Close withdraws the port and refuses the streams that wait. Accepted ones continue.
func (l *Listener) Close() error {
	err := error(&net.OpError{Op: "close", Net: l.addr.Network(), Addr: l.addr, Err: net.ErrClosed})
	l.closeOnce.Do(func() {
		err = nil
		l.server.removeListener(l)
		close(l.closed)
		for {
			select {
			case c := <-l.waiting:
				l.server.mux.declineStream(c, protocol.CodePort, fmt.Sprintf("port %d was closed", c.target.Port))
			default:
				return
			}
		}
	})
	return err
}

// Addr returns the Addr that the cloud dials.
func (l *Listener) Addr() net.Addr { return l.addr }

// Port is the port that the cloud dialled.
func (in *Incoming) Port() uint16 { return in.conn.target.Port }

// Target is the address and port that the cloud requests, for a Listener made by ListenAddresses.
func (in *Incoming) Target() netip.AddrPort {
	return in.conn.target.addrPort()
}

// Label is the user of the stream, as the cloud states.
func (in *Incoming) Label() string { return in.conn.label }

// Accept accepts the stream. It fails if the cloud has given up meanwhile.
func (in *Incoming) Accept() (*Conn, error) {
	c := in.conn
	if err := c.accept(); err != nil {
		return nil, err
	}
	c.mux.metrics.opened.Inc()
	c.mux.log.Info("tunnel opened", append(c.logFields(), zap.Duration("took", time.Since(c.startedAt)))...)
	return c, nil
}

// Refuse refuses the stream with a reason. The text reaches the caller of Dial.
func (in *Incoming) Refuse(text string) {
	in.conn.mux.declineStream(in.conn, protocol.CodeDeclined, text)
}

// RefuseUnready refuses the stream for the moment, with a reason: the caller of Dial may ask again at once.
func (in *Incoming) RefuseUnready(text string) {
	in.conn.mux.declineStream(in.conn, protocol.CodeUnready, text)
}
