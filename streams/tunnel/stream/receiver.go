package stream

import (
	"fmt"
	"io"
	"time"

	"github.com/frond-edge/frond/streams/tunnel/protocol"
)

// Receiver is the half of a stream that receives. Received bytes stay in the memory of their messages until they are read.
type Receiver struct {
	gate
	pool         *Pool
	initial      int // of window.size
	window       window
	queue        queue
	received     uint64 // bytes that arrived
	consumed     uint64 // bytes that were read
	granted      uint64 // bytes that the peer was allowed to send
	finished     bool   // the peer sends no more
	lastReceived time.Time
	lastPayload  time.Time
}

// NewReceiver returns a Receiver that grants size bytes at first, and at most limit bytes as far as the pool allows it.
func NewReceiver(size, limit int, pool *Pool, now time.Time) *Receiver {
	r := &Receiver{pool: pool, initial: size, window: window{size: size, limit: limit}, lastReceived: now, lastPayload: now}
	r.changed.L = &r.mu
	return r
}

// Read waits for bytes and moves them to p. creditDue says that the peer should be granted more. After the last byte the error is io.EOF
// if the peer has finished, else the reason why the stream broke.
func (r *Receiver) Read(p []byte) (n int, creditDue bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.awaitData(); err != nil {
		return 0, false, err
	}
	n = r.queue.read(p)
	return n, r.recordRead(n), nil
}

// Next waits for bytes and removes some. The caller reports them with Consume when it is done with them; errors are those of Read.
func (r *Receiver) Next() ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.awaitData(); err != nil {
		return nil, err
	}
	return r.queue.pop(), nil
}

// Consume accounts for n bytes from Next. creditDue says that the peer should be granted more.
func (r *Receiver) Consume(n int) (creditDue bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.recordRead(n)
}

// awaitData waits for data and returns nil when there is some. mu is held.
func (r *Receiver) awaitData() error {
	for {
		if err := r.barred(); err != nil {
			return err
		}
		switch {
		case !r.queue.empty():
			return nil
		case r.broken != nil:
			return r.broken
		case r.finished:
			return io.EOF
		}
		r.changed.Wait()
	}
}

// recordRead accounts for n bytes that were read, grows the window, and reports whether credit is due. mu is held.
func (r *Receiver) recordRead(n int) bool {
	r.consumed += uint64(n)
	if want := r.window.recordRead(n, time.Now()); want > 0 && !r.ended() && r.pool.Reserve(want) {
		r.window.size += want
	}
	return r.creditDue()
}

func (r *Receiver) ended() bool { return r.closed || r.broken != nil }

// creditDue reports whether half a window or more is free and not yet granted. mu is held.
func (r *Receiver) creditDue() bool {
	free := r.consumed + uint64(r.window.size) - r.granted
	return !r.finished && !r.ended() && int64(free) >= int64(r.window.size/2)
}

// CreditDue reports whether half a window or more is free and not yet granted.
func (r *Receiver) CreditDue() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.creditDue()
}

// Grant returns the numbers of a frame that is about to be sent: the bytes read, and how many more the peer may send.
func (r *Receiver) Grant() (consumed uint64, window uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.granted = max(r.granted, r.consumed+uint64(r.window.size))
	return r.consumed, uint32(r.granted - r.consumed)
}

// Accept takes the payload of a frame of KindData, or returns why the stream must break. It never waits for a reader. Once the half has
// ended it ignores frames.
func (r *Receiver) Accept(f protocol.Frame, now time.Time) *protocol.Reason {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch size := uint64(len(f.Payload)); {
	case r.ended():
		return nil
	case f.Offset > r.received:
		return &protocol.Reason{Code: protocol.CodeLost, Text: fmt.Sprintf("%d bytes were lost on the way", f.Offset-r.received)}
	case f.Offset < r.received:
		return &protocol.Reason{Code: protocol.CodeLost, Text: fmt.Sprintf("frames out of order: byte %d after %d", f.Offset, r.received)}
	case size > 0 && r.finished:
		return &protocol.Reason{Code: protocol.CodeProtocol, Text: "data after the end"}
	case r.received+size > r.granted:
		return &protocol.Reason{Code: protocol.CodeOverrun, Text: fmt.Sprintf("%d bytes more than the window", r.received+size-r.granted)}
	}
	r.lastReceived = now
	if len(f.Payload) > 0 {
		r.received += uint64(len(f.Payload))
		r.queue.push(f.Payload)
		r.lastPayload = now
		r.changed.Signal()
	}
	if f.Flags&protocol.FlagFin != 0 && !r.finished {
		r.finished = true
		r.changed.Broadcast()
	}
	return nil
}

// Restart makes the silence of the peer count from now: it was heard, or is expected to speak from now on.
func (r *Receiver) Restart(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastReceived, r.lastPayload = now, now
}

// SetRoundTrip sets the round trip by which the window grows.
func (r *Receiver) SetRoundTrip(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.window.roundTrip = d
}

// Received returns how many bytes have arrived, and when the last ones and the last frame did.
func (r *Receiver) Received() (bytes uint64, last, lastFrame time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.received, r.lastPayload, r.lastReceived
}

// Window returns how many bytes the peer may send ahead of the reader.
func (r *Receiver) Window() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.window.size
}

// Close ends the half for its callers and drops what was not read.
func (r *Receiver) Close() {
	r.gate.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = queue{}
}

// Release returns the window's growth to the pool. It is called once, after Break or Close.
func (r *Receiver) Release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pool.Release(r.window.size - r.initial)
}
