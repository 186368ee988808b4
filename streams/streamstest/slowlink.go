package streamstest

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Slow is a TCP relay that lets so many bytes a second through, each way.
type Slow struct {
	tb       testing.TB
	target   string
	rate     int
	listener net.Listener
	wg       sync.WaitGroup
	down, up atomic.Int64

	mu    sync.Mutex
	conns []net.Conn // guarded by mu
	ended bool       // guarded by mu
}

// NewSlow relays a free port of 127.0.0.1 to target. It ends with the test.
func NewSlow(tb testing.TB, target string, rate int) *Slow {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("listen: %v", err)
	}
	s := &Slow{tb: tb, target: target, rate: rate, listener: l}
	s.wg.Go(s.accept)
	tb.Cleanup(func() {
		s.mu.Lock()
		s.ended = true
		s.mu.Unlock()
		_ = l.Close()
		s.Cut()
		s.wg.Wait()
	})
	return s
}

// Addr is where the relay listens.
func (s *Slow) Addr() string { return s.listener.Addr().String() }

// Down is how many bytes came from the target so far.
func (s *Slow) Down() int64 { return s.down.Load() }

// Up is how many bytes went to the target so far.
func (s *Slow) Up() int64 { return s.up.Load() }

// Cut resets all connections; new ones are taken.
func (s *Slow) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
	s.conns = nil
}

func (s *Slow) accept() {
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
		if s.ended {
			_, _ = near.Close(), far.Close()
		}
		s.conns = append(s.conns, near, far)
		s.mu.Unlock()
		s.wg.Go(func() { s.relay(near, far, &s.up) })
		s.wg.Go(func() { s.relay(far, near, &s.down) })
	}
}

// relay copies no more than an eighth of a second's bytes at a time.
func (s *Slow) relay(from, to net.Conn, count *atomic.Int64) {
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
