package stream

import (
	"net"
	"os"
	"sync"
	"time"
)

// gate makes the callers of one half of a stream wait, and says why they no longer should: the half is closed, its deadline has passed,
// or the stream is broken.
type gate struct {
	mu      sync.Mutex // guards all below and all fields of the half
	changed sync.Cond  // on mu
	closed  bool
	broken  error
	timer   *time.Timer // of the deadline; nil: none, or it has passed
	expired bool
}

// SetDeadline replaces the deadline; the zero time is none.
func (g *gate) SetDeadline(at time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return net.ErrClosed
	}
	g.stopTimer()
	g.expired = false
	if at.IsZero() {
		return nil
	}
	wait := time.Until(at)
	if wait <= 0 {
		g.expire()
		return nil
	}
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.timer == timer { // otherwise it was replaced after it had fired
			g.expire()
		}
	})
	g.timer = timer
	return nil
}

func (g *gate) expire() {
	g.expired = true
	g.changed.Broadcast()
}

func (g *gate) stopTimer() {
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
}

// Break ends the half with a reason.
func (g *gate) Break(why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.broken = why
	g.changed.Broadcast()
}

// Close ends the half for its callers.
func (g *gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	g.stopTimer()
	g.changed.Broadcast()
}

// barred returns why a call must not wait, whatever the half holds. mu is held.
func (g *gate) barred() error {
	switch {
	case g.closed:
		return net.ErrClosed
	case g.expired:
		return os.ErrDeadlineExceeded
	}
	return nil
}
