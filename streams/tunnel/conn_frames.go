package tunnel

import (
	"fmt"
	"net"
	"time"
)

// probeSpacing is the least time between frames with a reply subject: for such a frame the sender's server answers "no responders" if
// there is no subscriber, long before PeerTimeout. Every frame could have one, but the subject is 50 bytes.
const probeSpacing = time.Second

// transmitFrame sends one frame with flags and as much of p as the peer's window and a frame hold. It returns the number of bytes of p
// sent. If still is given, the frame is sent only if still returns true under mu when its turn comes.
func (c *Conn) transmitFrame(p []byte, flags byte, still func() bool) (int, error) {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	now := time.Now()
	c.mu.Lock()
	if still != nil && !still() {
		c.mu.Unlock()
		return 0, nil
	}
	if err := c.mayTransmit(len(p) > 0, flags); err != nil {
		c.mu.Unlock()
		return 0, err
	}
	n := min(len(p), maxPayload, int(c.limit-min(c.sent, c.limit)))
	if flags&flagFin != 0 && !c.finSent {
		c.finSent = true
		c.writable.Broadcast()
	}
	if c.finSent {
		flags |= flagFin
	}
	f := c.newFrame(kindData, p[:n])
	f.flags = flags
	c.sent += uint64(n)
	if n > 0 {
		c.lastPayload = now
	}
	back := ""
	if now.Sub(c.lastProbe) >= probeSpacing {
		c.lastProbe, back = now, c.replySubject
	}
	c.lastSent = now
	c.mu.Unlock()
	if err := c.mux.publishFrame(c.sendSubject, back, f); err != nil {
		broken := &BrokenError{Code: CodeHub, Text: err.Error()}
		c.breakStream(broken, false)
		return 0, broken
	}
	c.mux.metrics.sent.Add(float64(n))
	return n, nil
}

// mayTransmit returns an error if no further frame may be sent. mu is held.
func (c *Conn) mayTransmit(data bool, flags byte) error {
	switch {
	case c.err != nil:
		return c.err
	case c.closed && flags&flagClosed == 0:
		return net.ErrClosed
	case data:
		return c.mayWrite()
	}
	return nil
}

// newFrame builds a frame from the current state and records the credit that it grants. mu is held.
func (c *Conn) newFrame(k kind, payload []byte) frame {
	c.granted = max(c.granted, c.consumed+uint64(c.window.size))
	return frame{kind: k, offset: c.sent, consumed: c.consumed, window: uint32(c.granted - c.consumed), payload: payload}
}

// receiveFrame handles a frame of the peer. It never blocks on a reader.
func (c *Conn) receiveFrame(f frame, now time.Time) {
	c.mu.Lock()
	if c.closed || c.err != nil {
		c.mu.Unlock()
		return
	}
	c.lastReceived = now
	c.peer.lastReceived.Store(now.UnixNano())
	var broken *BrokenError
	switch f.kind {
	case kindData:
		broken = c.acceptData(f, now)
	case kindAccept:
		broken = c.handleAccept(f, now)
	case kindReset, kindRefuse:
		if c.peerClosed {
			break // the peer had closed in order
		}
		code, text := parseReason(f.payload)
		broken = &BrokenError{Code: code, Text: text, ByPeer: true}
		if f.kind == kindRefuse && (c.open || !c.dialed) {
			broken = &BrokenError{Code: CodeProtocol, Text: "refused after it was opened"}
		}
	default:
		broken = &BrokenError{Code: CodeProtocol, Text: fmt.Sprintf("frame of kind %d", f.kind)}
	}
	c.mu.Unlock()
	if broken != nil {
		c.breakStream(broken, !broken.ByPeer)
	}
}

// acceptData handles a frame's payload and numbers. mu is held.
func (c *Conn) acceptData(f frame, now time.Time) *BrokenError {
	switch size := uint64(len(f.payload)); {
	case !c.open:
		return &BrokenError{Code: CodeProtocol, Text: "data before the stream was opened"}
	case f.offset > c.received:
		return &BrokenError{Code: CodeLost, Text: fmt.Sprintf("%d bytes were lost on the way", f.offset-c.received)}
	case f.offset < c.received:
		return &BrokenError{Code: CodeLost, Text: fmt.Sprintf("frames out of order: byte %d after %d", f.offset, c.received)}
	case size > 0 && c.peerFin:
		return &BrokenError{Code: CodeProtocol, Text: "data after the end"}
	case c.received+size > c.granted:
		return &BrokenError{Code: CodeOverrun, Text: fmt.Sprintf("%d bytes more than the window", c.received+size-c.granted)}
	case f.consumed > c.sent:
		return &BrokenError{Code: CodeProtocol, Text: "the peer has read what was not sent"}
	}
	if !c.dialed && c.window.roundTrip == 0 {
		c.window.roundTrip = c.mux.recordRoundTrip(c.peer, now.Sub(c.acceptedAt))
	}
	if len(f.payload) > 0 {
		c.received += uint64(len(f.payload))
		c.queue.push(f.payload)
		c.lastPayload = now
		c.readable.Signal()
		c.mux.metrics.received.Add(float64(len(f.payload)))
	}
	c.updateCredit(f)
	if f.flags&flagFin != 0 && !c.peerFin {
		c.peerFin = true
		c.readable.Broadcast()
	}
	if f.flags&flagClosed != 0 && !c.peerClosed {
		c.peerClosed = true
		c.writable.Broadcast()
	}
	return nil
}

// updateCredit records the peer's credit; no peer makes this end send more than MaxWindow ahead. mu is held.
func (c *Conn) updateCredit(f frame) {
	if limit := f.consumed + min(uint64(f.window), uint64(c.mux.cfg.MaxWindow)); limit > c.limit {
		c.limit = limit
		c.writable.Broadcast()
	}
}

// handleAccept handles a node's accept frame. mu is held.
func (c *Conn) handleAccept(f frame, now time.Time) *BrokenError {
	if !c.dialed || c.open || f.offset != 0 || f.consumed != 0 {
		return &BrokenError{Code: CodeProtocol, Text: "accepted what was not asked"}
	}
	c.open = true
	c.window.roundTrip = c.mux.recordRoundTrip(c.peer, now.Sub(c.startedAt))
	c.updateCredit(f)
	close(c.answered)
	return nil
}

// handleNoResponders handles the answer of this end's own NATS server that the other end has no subscriber.
func (c *Conn) handleNoResponders() {
	c.breakStream(&BrokenError{Code: CodeOffline, Text: "the link between cloud and node went down"}, false)
}

// breakStream breaks the stream, unless it has ended, and with tell sends the reason to the peer. Received bytes can still be read. It
// never blocks.
func (c *Conn) breakStream(why *BrokenError, tell bool) {
	c.mu.Lock()
	if c.err != nil || c.closed {
		c.mu.Unlock()
		return
	}
	c.err = why
	if !c.open {
		close(c.answered)
	}
	reset := c.newFrame(kindReset, reasonPayload(why.Code, why.Text))
	c.readable.Broadcast()
	c.writable.Broadcast()
	c.mu.Unlock()
	if tell {
		c.mux.queueFrame(c.sendSubject, reset) // before the stream is removed: otherwise the peer may first learn that it is unknown
	}
	c.mux.removeStream(c, why)
}

// checkTimeouts is called several times per KeepAlive: it breaks the stream when a timeout has passed, and keeps it alive.
func (c *Conn) checkTimeouts(now time.Time) {
	cfg := c.mux.cfg
	c.mu.Lock()
	open, lost := c.open && !c.closed && c.err == nil && !c.peerClosed, c.err
	silent, quiet, idle := now.Sub(c.lastReceived), now.Sub(c.lastSent), now.Sub(c.lastPayload)
	waiting := now.Sub(c.startedAt)
	c.mu.Unlock()
	switch {
	case lost != nil:
	case !open:
		if !c.dialed && c.isPending() && waiting > cfg.OpenTimeout {
			c.breakStream(&BrokenError{Code: CodeBusy, Text: "not accepted in time"}, true)
		}
	case silent >= cfg.PeerTimeout:
		c.breakStream(&BrokenError{Code: CodeSilent, Text: fmt.Sprintf("nothing heard of the peer for %v", silent.Round(time.Second))}, true)
	case cfg.IdleTimeout > 0 && idle >= cfg.IdleTimeout:
		c.breakStream(&BrokenError{Code: CodeIdle, Text: fmt.Sprintf("no byte moved for %v", cfg.IdleTimeout)}, true)
	case quiet >= cfg.KeepAlive && c.sendMu.TryLock(): // a send that holds the lock is about to transmit
		c.sendMu.Unlock()
		_, _ = c.transmitFrame(nil, 0, nil) // the stream is broken
	}
}

// isPending reports whether the stream waits for Incoming.Accept.
func (c *Conn) isPending() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.open && !c.closed && c.err == nil
}
