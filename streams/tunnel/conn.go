package tunnel

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/streams/tunnel/protocol"
	"github.com/frond-edge/frond/streams/tunnel/stream"
)

// statusNoResponders is the status with which a NATS server reports that the subject of a request has no subscriber.
const statusNoResponders = "503"

// Conn is one end of a stream. Its methods may be called from any goroutine.
type Conn struct {
	mux                       *mux
	peer                      *peer
	key                       string // "<replica>.<id>"
	sendSubject, replySubject string // subjects of frames to the other end, and to this one
	target                    Addr
	local, remote             Addr // one is the target, the other is the cloud
	label                     string
	dialed                    bool // this is the Dialer's end
	startedAt                 time.Time

	state    *stream.State
	receiver *stream.Receiver
	sender   *stream.Sender
	frames   *stream.Transmitter

	// foreignLogged limits the log to one attempt of another node.
	foreignLogged sync.Once
	// measured says that the node's end knows the round trip. handleMessage alone uses it, which the subscription calls one at a time.
	measured bool
}

func newConn(m *mux, p *peer, key string, target Addr, label string, dialed bool, now time.Time) *Conn {
	c := &Conn{
		mux: m, peer: p, key: key, target: target, label: label, dialed: dialed, startedAt: now,
		sendSubject: m.sendPrefix + p.token + "." + key, replySubject: m.receivePrefix + p.token + "." + key,
		state:    stream.NewState(),
		receiver: stream.NewReceiver(m.cfg.Window, m.cfg.MaxWindow, p.growth, now),
		sender:   stream.NewSender(m.cfg.MaxWindow),
	}
	c.local, c.remote = target, Addr{}
	if dialed {
		c.local, c.remote = c.remote, c.local
	}
	c.frames = stream.NewTransmitter(m.frames, c.sendSubject, c.replySubject, c.sender, c.receiver)
	return c
}

// Label is the user of the stream, as set by WithLabel.
func (c *Conn) Label() string { return c.label }

// LocalAddr returns an Addr.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns an Addr.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// Read reads received bytes. After the last byte it returns io.EOF if the peer closed its end, else the reason why the stream broke.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, creditDue, err := c.receiver.Read(p)
	if creditDue {
		c.sendCredit()
	}
	return n, c.wrapError("read", err)
}

// WriteTo writes received bytes to w, without a copy, until the peer closes its end. io.Copy uses it.
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for {
		chunk, err := c.receiver.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return total, c.wrapError("read", err)
		}
		n, err := w.Write(chunk)
		total += int64(n)
		if c.receiver.Consume(len(chunk)) {
			c.sendCredit()
		}
		if err == nil && n < len(chunk) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return total, err
		}
	}
}

// sendCredit tells the peer that the window opened by a notable amount. If that fails, the next Read returns the reason.
func (c *Conn) sendCredit() { _ = c.checkSent(c.frames.SendCredit()) }

// Write sends p. It returns when NATS has taken all of it, or the number of bytes taken and the error.
func (c *Conn) Write(p []byte) (n int, err error) {
	if err := c.sender.BeginWrite(); err != nil {
		return 0, c.wrapError("write", err)
	}
	defer c.sender.EndWrite()
	for n < len(p) && err == nil {
		if err = c.sender.AwaitCredit(); err == nil {
			var sent int
			sent, err = c.send(p[n:], 0)
			n += sent
		}
	}
	return n, c.wrapError("write", err)
}

// CloseWrite tells the peer that nothing more will be sent; the peer may continue to send. A Write in progress ends.
func (c *Conn) CloseWrite() error {
	_, err := c.send(nil, protocol.FlagFin)
	return c.wrapError("close write", err)
}

// send sends one frame with flags and as much of p as it holds, and returns the number of bytes of p sent.
func (c *Conn) send(p []byte, flags byte) (int, error) {
	n, err := c.frames.Send(p, flags)
	if err != nil {
		return 0, c.checkSent(err)
	}
	c.mux.metrics.sent.Add(float64(n))
	return n, nil
}

// checkSent breaks the stream if NATS did not take a frame.
func (c *Conn) checkSent(err error) error {
	unsent, ok := errors.AsType[*stream.PublishError](err)
	if !ok {
		return err
	}
	broken := &BrokenError{Code: protocol.CodeHub, Text: unsent.Error()}
	c.breakStream(broken, false)
	return broken
}

// Close closes this end: written bytes still arrive, received bytes are dropped, and the peer's Write fails.
func (c *Conn) Close() error {
	if err := c.state.Close(); err != nil {
		return c.wrapError("close", err)
	}
	// breakStream may not have removed the stream yet: the user closes it because of the error that has woken it.
	broken, _ := c.state.Status().Broken.(*BrokenError) //nolint:errorlint // as breakStream has stored it
	receives := broken == nil && !c.sender.PeerClosed()
	c.receiver.Close()
	c.sender.Close()
	var err error
	if receives {
		_, err = c.send(nil, protocol.FlagFin|protocol.FlagClosed)
	}
	c.mux.removeStream(c, broken)
	return c.wrapError("close", err)
}

// Reset ends the stream and tells the peer the reason: its Read and Write fail with a BrokenError that holds reason.
func (c *Conn) Reset(reason string) {
	c.breakStream(&BrokenError{Code: protocol.CodeReset, Text: reason}, true)
	_ = c.Close() // it may be closed already, which is the aim
}

// SetDeadline sets the deadlines of reads and writes; see net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline sets the deadline of reads.
func (c *Conn) SetReadDeadline(t time.Time) error {
	return c.wrapError("set deadline", c.receiver.SetDeadline(t))
}

// SetWriteDeadline sets the deadline of writes.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	return c.wrapError("set deadline", c.sender.SetDeadline(t))
}

// wrapError adds the stream to an error; io.EOF and nil stay unchanged, as net.Conn requires.
func (c *Conn) wrapError(op string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return &net.OpError{Op: op, Net: Addr{}.Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// logFields are the fields that identify a stream in logs.
func (c *Conn) logFields() []zap.Field {
	return append(c.target.logFields(), zap.String("user", c.label), zap.String("stream", c.key))
}

// handleMessage handles a message for this stream. It never blocks on a reader.
func (c *Conn) handleMessage(msg *nats.Msg) {
	if len(msg.Data) == 0 && msg.Header.Get("Status") == statusNoResponders {
		c.breakStream(&BrokenError{Code: protocol.CodeOffline, Text: "the link between cloud and node went down"}, false)
		return
	}
	f, err := protocol.ParseFrame(msg.Data)
	if err != nil {
		c.mux.metrics.countRefused(protocol.CodeGarbage)
		c.breakStream(&BrokenError{Code: protocol.CodeProtocol, Text: err.Error()}, true)
		return
	}
	status, now := c.state.Status(), time.Now()
	if status.Ended() {
		return
	}
	c.peer.lastReceived.Store(now.UnixNano())
	var why *protocol.Reason
	switch {
	case f.Kind == protocol.KindData:
		why = c.handleData(f, status, now)
	case f.Kind == protocol.KindAccept:
		why = c.handleAccept(f, status, now)
	case f.Kind != protocol.KindReset && f.Kind != protocol.KindRefuse:
		why = &protocol.Reason{Code: protocol.CodeProtocol, Text: fmt.Sprintf("frame of kind %d", f.Kind)}
	case c.sender.PeerClosed(): // the peer had closed in order
	case f.Kind == protocol.KindRefuse && (status.Opened() || !c.dialed):
		why = &protocol.Reason{Code: protocol.CodeProtocol, Text: "refused after it was opened"}
	default:
		reason := protocol.ParseReason(f.Payload)
		c.breakStream(&BrokenError{Code: reason.Code, Text: reason.Text, ByPeer: true}, false)
	}
	if why != nil {
		c.breakStream(&BrokenError{Code: why.Code, Text: why.Text}, true)
	}
}

// handleData handles a frame of data or credit.
func (c *Conn) handleData(f protocol.Frame, status stream.Status, now time.Time) *protocol.Reason {
	if !status.Opened() {
		return &protocol.Reason{Code: protocol.CodeProtocol, Text: "data before the stream was opened"}
	}
	if why := c.sender.Acknowledge(f); why != nil {
		return why
	}
	if why := c.receiver.Accept(f, now); why != nil {
		return why
	}
	if !c.dialed && !c.measured {
		c.measured = true
		c.receiver.SetRoundTrip(c.peer.roundTrip.Record(now.Sub(status.OpenedAt)))
	}
	if len(f.Payload) > 0 {
		c.mux.metrics.received.Add(float64(len(f.Payload)))
	}
	return nil
}

// handleAccept handles a node's accept frame.
func (c *Conn) handleAccept(f protocol.Frame, status stream.Status, now time.Time) *protocol.Reason {
	if !c.dialed || status.Opened() || f.Offset != 0 || f.Consumed != 0 {
		return &protocol.Reason{Code: protocol.CodeProtocol, Text: "accepted what was not asked"}
	}
	c.receiver.SetRoundTrip(c.peer.roundTrip.Record(now.Sub(c.startedAt)))
	c.receiver.Restart(now)
	why := c.sender.Acknowledge(protocol.Frame{Window: f.Window})
	_ = c.state.Open(now) // it may have been broken meanwhile
	return why
}

// accept accepts a stream that the cloud requested.
func (c *Conn) accept() error {
	now := time.Now()
	c.receiver.Restart(now)
	if err := c.state.Open(now); err != nil {
		return c.wrapError("accept", err)
	}
	return c.wrapError("accept", c.checkSent(c.frames.SendFirst(protocol.Frame{Kind: protocol.KindAccept})))
}

// breakStream breaks the stream, unless it has ended, and with tell sends the reason to the peer. Received bytes can still be read. It
// never blocks.
func (c *Conn) breakStream(why *BrokenError, tell bool) {
	if !c.state.Break(why) {
		return
	}
	c.receiver.Break(why)
	c.sender.Break(why)
	if tell { // before the stream is removed: otherwise the peer may first learn that it is unknown
		reset := protocol.Reason{Code: why.Code, Text: why.Text}.Frame(protocol.KindReset)
		reset.Offset, _ = c.sender.Sent()
		reset.Consumed, reset.Window = c.receiver.Grant()
		c.mux.frames.queueFrame(c.sendSubject, reset)
	}
	c.mux.removeStream(c, why)
}

// checkTimeouts is called several times per KeepAlive: it breaks the stream when a timeout has passed, and keeps it alive.
func (c *Conn) checkTimeouts(now time.Time) {
	cfg, status := c.mux.cfg, c.state.Status()
	_, lastReceived, heard := c.receiver.Received()
	_, lastSent := c.sender.Sent()
	switch silent := now.Sub(heard); {
	case status.Pending():
		if !c.dialed && now.Sub(c.startedAt) > cfg.OpenTimeout {
			c.breakStream(&BrokenError{Code: protocol.CodeBusy, Text: "not accepted in time"}, true)
		}
	case status.Ended() || c.sender.PeerClosed():
	case silent >= cfg.PeerTimeout:
		c.breakStream(&BrokenError{Code: protocol.CodeSilent, Text: fmt.Sprintf("nothing heard of the peer for %v", silent.Round(time.Second))}, true)
	case cfg.IdleTimeout > 0 && min(now.Sub(lastReceived), now.Sub(lastSent)) >= cfg.IdleTimeout:
		c.breakStream(&BrokenError{Code: protocol.CodeIdle, Text: fmt.Sprintf("no byte moved for %v", cfg.IdleTimeout)}, true)
	default:
		_ = c.checkSent(c.frames.KeepAlive(now, cfg.KeepAlive)) // the stream is broken
	}
}
