package stream

import (
	"errors"
	"net"
	"time"

	"github.com/frond-edge/frond/streams/tunnel/protocol"
)

var (
	// ErrClosedByPeer is the error of a write once the peer has closed its end and reads no more.
	ErrClosedByPeer = errors.New("closed by the peer")
	// ErrFinished is the error of a write after CloseWrite.
	ErrFinished = errors.New("write after CloseWrite")
)

// Sender is the half of a stream that sends.
type Sender struct {
	gate
	maxAhead    uint64 // no peer makes this end send more than this ahead of its reader
	writing     bool   // between BeginWrite and EndWrite
	sent        uint64
	limit       uint64 // bytes that may be sent
	finished    bool   // this end sends no more
	peerClosed  bool   // the peer reads no more
	lastPayload time.Time
}

// NewSender returns a Sender without credit.
func NewSender(maxAhead int) *Sender {
	s := &Sender{maxAhead: uint64(maxAhead)}
	s.changed.L = &s.mu
	return s
}

// BeginWrite waits for the turn of a write; the caller ends its turn with EndWrite, unless there is an error.
func (s *Sender) BeginWrite() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.writing && s.mayWrite() == nil {
		s.changed.Wait()
	}
	if err := s.mayWrite(); err != nil {
		return err
	}
	s.writing = true
	return nil
}

// EndWrite ends a turn.
func (s *Sender) EndWrite() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing = false
	s.changed.Broadcast()
}

// AwaitCredit waits until the peer accepts more bytes.
func (s *Sender) AwaitCredit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if err := s.mayWrite(); err != nil || s.sent < s.limit {
			return err
		}
		s.changed.Wait()
	}
}

// mayWrite returns an error if nothing can be written any more. mu is held.
func (s *Sender) mayWrite() error {
	if err := s.barred(); err != nil {
		return err
	}
	switch {
	case s.broken != nil:
		return s.broken
	case s.finished:
		return ErrFinished
	case s.peerClosed:
		return ErrClosedByPeer
	}
	return nil
}

// NextFrame returns the next frame of KindData, with flags and as much of p as the peer's credit and a frame hold, and accounts for it.
// A closed half sends one frame more, with FlagClosed.
func (s *Sender) NextFrame(p []byte, flags byte, now time.Time) (protocol.Frame, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mayTransmit(len(p) > 0, flags); err != nil {
		return protocol.Frame{}, err
	}
	n := min(len(p), protocol.MaxPayload, int(s.limit-min(s.sent, s.limit)))
	if flags&protocol.FlagFin != 0 && !s.finished {
		s.finished = true
		s.changed.Broadcast()
	}
	if s.finished {
		flags |= protocol.FlagFin
	}
	f := protocol.Frame{Kind: protocol.KindData, Flags: flags, Offset: s.sent, Payload: p[:n]}
	s.sent += uint64(n)
	if n > 0 {
		s.lastPayload = now
	}
	return f, nil
}

// mayTransmit returns an error if no further frame may be sent. mu is held.
func (s *Sender) mayTransmit(data bool, flags byte) error {
	switch {
	case s.broken != nil:
		return s.broken
	case data:
		return s.mayWrite()
	case s.closed && flags&protocol.FlagClosed == 0:
		return net.ErrClosed
	}
	return nil
}

// Acknowledge records the credit of a peer's frame and whether the peer reads any more, or returns why the stream must break.
func (s *Sender) Acknowledge(f protocol.Frame) *protocol.Reason {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.Consumed > s.sent {
		return &protocol.Reason{Code: protocol.CodeProtocol, Text: "the peer has read what was not sent"}
	}
	closes := f.Flags&protocol.FlagClosed != 0 && !s.peerClosed
	limit := f.Consumed + min(uint64(f.Window), s.maxAhead)
	if limit > s.limit || closes {
		s.limit, s.peerClosed = max(s.limit, limit), s.peerClosed || closes
		s.changed.Broadcast()
	}
	return nil
}

// PeerClosed reports whether the peer reads no more.
func (s *Sender) PeerClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peerClosed
}

// Sent returns how many bytes were sent, and when the last ones were.
func (s *Sender) Sent() (bytes uint64, last time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent, s.lastPayload
}
