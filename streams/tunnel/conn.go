package tunnel

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// Addr is one end of a stream.
type Addr struct {
	Node string // "" at the Dialer's end
	// Address is an address that the node reaches, such as a pod's; the zero value means that Port is the node's own.
	Address netip.Addr
	Port    uint16
}

// Network returns "frond-tunnel".
func (Addr) Network() string { return "frond-tunnel" }

// String returns "node:port", "node/address:port", or "cloud" for the Dialer's end.
func (a Addr) String() string {
	if a.Node == "" {
		return "cloud"
	}
	if a.Address.IsValid() {
		return a.Node + "/" + netip.AddrPortFrom(a.Address, a.Port).String()
	}
	return net.JoinHostPort(a.Node, portText(a.Port))
}

// Conn is one end of a stream. Its methods may be called from any goroutine.
type Conn struct {
	mux          *mux
	peer         *peer
	key          string // "<replica>.<id>"
	sendSubject  string // subject of frames to the other end
	replySubject string // subject of frames to this end
	target       Addr
	label        string
	dialed       bool // this is the Dialer's end
	startedAt    time.Time

	// foreignLogged limits the log to one attempt of another node.
	foreignLogged sync.Once

	// sendMu orders this end's frames. It is taken before mu, and held while a frame is passed to NATS.
	sendMu sync.Mutex

	mu       sync.Mutex // guards all below
	readable sync.Cond  // on mu: data, end, error, deadline, Close
	writable sync.Cond  // on mu: credit, turn, error, deadline, Close

	answered chan struct{} // closed when open or err is set
	open     bool
	closed   bool  // Close was called
	err      error // why the stream ended early

	queue                  queue
	received               uint64 // bytes that arrived
	consumed               uint64 // bytes that were read
	granted                uint64 // bytes that this end allowed the peer to send
	window                 window
	peerFin                bool // the peer sends no more
	readDeadline           deadline
	writing                bool // a Write is in progress
	sent                   uint64
	limit                  uint64 // bytes that may be sent
	finSent                bool
	peerClosed             bool // the peer reads no more
	writeDeadline          deadline
	acceptedAt             time.Time // when this end accepted
	lastReceived, lastSent time.Time // last frame in each direction
	lastProbe              time.Time // the last frame that requested a "no responders" answer
	lastPayload            time.Time // last payload in any direction
}

func newConn(m *mux, p *peer, key string, target Addr, label string, dialed bool, now time.Time) *Conn {
	c := &Conn{
		mux: m, peer: p, key: key, target: target, label: label, dialed: dialed, startedAt: now, lastReceived: now, lastPayload: now,
		sendSubject: m.sendPrefix + p.token + "." + key, replySubject: m.receivePrefix + p.token + "." + key,
		answered: make(chan struct{}),
		window:   window{size: m.cfg.Window, limit: m.cfg.MaxWindow},
	}
	c.readable.L, c.writable.L = &c.mu, &c.mu
	return c
}

// Label is the user of the stream, as set by WithLabel.
func (c *Conn) Label() string { return c.label }

// LocalAddr returns an Addr.
func (c *Conn) LocalAddr() net.Addr {
	if c.dialed {
		return Addr{}
	}
	return c.target
}

// RemoteAddr returns an Addr.
func (c *Conn) RemoteAddr() net.Addr {
	if c.dialed {
		return c.target
	}
	return Addr{}
}

// Read reads received bytes. After the last byte it returns io.EOF if the peer closed its end, else the reason why the stream broke.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.mu.Lock()
	if err := c.awaitData(); err != nil {
		c.mu.Unlock()
		return 0, c.wrapError("read", err)
	}
	n := c.queue.read(p)
	c.recordRead(n)
	return n, nil
}

// WriteTo writes received bytes to w, without a copy, until the peer closes its end. io.Copy uses it.
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for {
		c.mu.Lock()
		err := c.awaitData()
		if err != nil {
			c.mu.Unlock()
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return total, c.wrapError("read", err)
		}
		chunk := c.queue.pop()
		c.mu.Unlock()
		n, err := w.Write(chunk)
		total += int64(n)
		c.mu.Lock()
		c.recordRead(len(chunk))
		if err == nil && n < len(chunk) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return total, err
		}
	}
}

// awaitData waits for data and returns nil when there is some. mu is held.
func (c *Conn) awaitData() error {
	for {
		switch {
		case c.closed:
			return net.ErrClosed
		case c.readDeadline.passed:
			return os.ErrDeadlineExceeded
		case !c.queue.empty():
			return nil
		case c.err != nil:
			return c.err
		case c.peerFin:
			return io.EOF
		}
		c.readable.Wait()
	}
}

// recordRead accounts for n bytes that were read and unlocks mu. It tells the peer if the window opened by a notable amount.
func (c *Conn) recordRead(n int) {
	now := time.Now()
	c.consumed += uint64(n)
	if want := c.window.recordRead(n, now); want > 0 && !c.closed && c.err == nil {
		c.window.size += c.mux.growWindow(c.peer, want)
	}
	due := c.creditDue()
	c.mu.Unlock()
	if due {
		_, _ = c.transmitFrame(nil, 0, c.creditDue) // the stream is broken; the next Read returns the reason
	}
}

// creditDue reports whether half a window or more is free and not yet granted. mu is held.
func (c *Conn) creditDue() bool {
	free := c.consumed + uint64(c.window.size) - c.granted
	return !c.peerFin && c.err == nil && !c.closed && int64(free) >= int64(c.window.size/2)
}

// Write sends p. It returns when NATS has taken all of it, or the number of bytes taken and the error.
func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	for c.writing && c.mayWrite() == nil {
		c.writable.Wait()
	}
	if err := c.mayWrite(); err != nil {
		c.mu.Unlock()
		return 0, c.wrapError("write", err)
	}
	c.writing = true
	c.mu.Unlock()
	n, err := c.writeAll(p)
	c.mu.Lock()
	c.writing = false
	c.writable.Broadcast()
	c.mu.Unlock()
	return n, c.wrapError("write", err)
}

func (c *Conn) writeAll(p []byte) (n int, err error) {
	for n < len(p) {
		c.mu.Lock()
		for err = c.mayWrite(); err == nil && c.sent >= c.limit; err = c.mayWrite() {
			c.writable.Wait()
		}
		c.mu.Unlock()
		if err != nil {
			return n, err
		}
		k, err := c.transmitFrame(p[n:], 0, nil)
		n += k
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// mayWrite returns an error if nothing can be written any more. mu is held.
func (c *Conn) mayWrite() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.writeDeadline.passed:
		return os.ErrDeadlineExceeded
	case c.err != nil:
		return c.err
	case c.finSent:
		return errWriteClosed
	case c.peerClosed:
		return errClosedByPeer
	}
	return nil
}

// CloseWrite tells the peer that nothing more will be sent; the peer may continue to send. A Write in progress ends.
func (c *Conn) CloseWrite() error {
	_, err := c.transmitFrame(nil, flagFin, nil)
	return c.wrapError("close write", err)
}

// Close closes this end: written bytes still arrive, received bytes are dropped, and the peer's Write fails.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.wrapError("close", net.ErrClosed)
	}
	ended := c.err != nil || c.peerClosed // the peer no longer receives
	c.closed, c.queue = true, queue{}
	c.readDeadline.stop()
	c.writeDeadline.stop()
	c.readable.Broadcast()
	c.writable.Broadcast()
	c.mu.Unlock()
	var err error
	if !ended {
		_, err = c.transmitFrame(nil, flagFin|flagClosed, nil)
	}
	c.mux.removeStream(c, nil)
	return c.wrapError("close", err)
}

// Reset ends the stream and tells the peer the reason: its Read and Write fail with a BrokenError that holds reason.
func (c *Conn) Reset(reason string) {
	c.breakStream(&BrokenError{Code: CodeReset, Text: reason}, true)
	_ = c.Close() // it may be closed already, which is the aim
}

// SetDeadline sets the deadlines of reads and writes; see net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	return c.setDeadlines(t, &c.readDeadline, &c.writeDeadline)
}

// SetReadDeadline sets the deadline of reads.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, &c.readDeadline) }

// SetWriteDeadline sets the deadline of writes.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, &c.writeDeadline) }

func (c *Conn) setDeadlines(t time.Time, which ...*deadline) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.wrapError("set deadline", net.ErrClosed)
	}
	for _, d := range which {
		if d == &c.readDeadline {
			d.set(t, &c.readable)
		} else {
			d.set(t, &c.writable)
		}
	}
	return nil
}

// wrapError adds the stream to an error; io.EOF and nil stay unchanged, as net.Conn requires.
func (c *Conn) wrapError(op string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return &net.OpError{Op: op, Net: Addr{}.Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
