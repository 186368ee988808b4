package stream

import (
	"errors"
	"net"
	"sync"
	"time"
)

// ErrOpened is the error of a second Open.
var ErrOpened = errors.New("accepted twice")

// State is whether a stream is requested, open, broken or closed. It is opened once, broken once at most, and closed once.
type State struct {
	answered chan struct{} // closes when the stream is opened, or broken before

	mu     sync.Mutex // guards status
	status Status
}

// Status is a copy of a State. The zero Status is that of a requested stream.
type Status struct {
	OpenedAt time.Time // zero: not yet
	Closed   bool      // this end was closed
	Broken   error     // why the stream ended early
}

// Opened reports whether both ends agreed on the stream, even if it has ended since.
func (s Status) Opened() bool { return !s.OpenedAt.IsZero() }

// Ended reports whether the stream is broken or closed.
func (s Status) Ended() bool { return s.Closed || s.Broken != nil }

// Pending reports whether the stream waits to be opened.
func (s Status) Pending() bool { return !s.Opened() && !s.Ended() }

// NewState returns the State of a requested stream.
func NewState() *State { return &State{answered: make(chan struct{})} }

// Answered closes when the stream is opened, or broken before.
func (s *State) Answered() <-chan struct{} { return s.answered }

// Status returns the present status.
func (s *State) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Open opens the stream, or returns why it is broken, or ErrOpened.
func (s *State) Open(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.status.Broken != nil:
		return s.status.Broken
	case s.status.Opened():
		return ErrOpened
	}
	s.status.OpenedAt = now
	close(s.answered)
	return nil
}

// Break breaks the stream and reports whether it had not ended before.
func (s *State) Break(why error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status.Ended() {
		return false
	}
	s.status.Broken = why
	if !s.status.Opened() {
		close(s.answered)
	}
	return true
}

// Close closes the stream, once; later calls return net.ErrClosed.
func (s *State) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status.Closed {
		return net.ErrClosed
	}
	s.status.Closed = true
	return nil
}
