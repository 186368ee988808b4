package streamstest

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// SlowLink is a TCP relay with a rate limit in bytes per second, for each direction.
type SlowLink struct {
	tb       testing.TB
	target   string
	rate     int
	listener net.Listener
	wg       sync.WaitGroup
	down, up atomic.Int64

	mu     sync.Mutex
	conns  []net.Conn // guarded by mu
	closed bool       // guarded by mu
}

// NewSlowLink relays a free port of 127.0.0.1 to target, with rate bytes per second. It ends with the test.
func NewSlowLink(tb testing.TB, target string, rate int) *SlowLink {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("listen: %v", err)
	}
	s := &SlowLink{tb: tb, target: target, rate: rate, listener: l}
	s.wg.Go(s.acceptLoop)
	tb.Cleanup(func() {
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		_ = l.Close()
		s.Cut()
		s.wg.Wait()
	})
	return s
}

// Addr returns the address of the relay.
func (s *SlowLink) Addr() string { return s.listener.Addr().String() }

// BytesDown returns the number of bytes received from the target so far.
func (s *SlowLink) BytesDown() int64 { return s.down.Load() }

// BytesUp returns the number of bytes sent to the target so far.
func (s *SlowLink) BytesUp() int64 { return s.up.Load() }

// Cut resets all connections; new ones are accepted.
func (s *SlowLink) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
	s.conns = nil
}

func (s *SlowLink) acceptLoop() {
	for {
		near, err := s.listener.Accept()
		if err != nil {
			return
		}
		far, err := new(net.Dialer).DialContext(s.tb.Context(), "tcp", s.target)
		if err != nil {
			_ = near.Close()
			continue
		}
		s.mu.Lock()
		if s.closed {
			_, _ = near.Close(), far.Close()
		}
		s.conns = append(s.conns, near, far)
		s.mu.Unlock()
		s.wg.Go(func() { s.relayLimited(near, far, &s.up) })
		s.wg.Go(func() { s.relayLimited(far, near, &s.down) })
	}
}

// relayLimited copies at most an eighth of a second's bytes at a time.
func (s *SlowLink) relayLimited(from, to net.Conn, count *atomic.Int64) {
	defer func() { _, _ = from.Close(), to.Close() }()
	buffer := make([]byte, max(1, s.rate/8))
	due := time.Now()
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if now := time.Now(); due.Before(now) {
			due = now
		}
		due = due.Add(time.Duration(n) * time.Second / time.Duration(s.rate))
		<-time.After(time.Until(due))
		count.Add(int64(n))
		if _, err := io.Writer(to).Write(buffer[:n]); err != nil {
			return
		}
	}
}
