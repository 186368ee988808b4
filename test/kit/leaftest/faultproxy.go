package leaftest

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"
)

// FaultProxy is a TCP relay whose faults a test controls.
type FaultProxy struct {
	tb       testing.TB
	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu       sync.Mutex // guards all below
	closed   bool
	refusing bool
	silent   [2]bool // by direction
	pairs    map[*relayPair]struct{}
}

// Direction is the direction of bytes through a FaultProxy.
type Direction int

// The directions: from the dialling leaf to the hub, and back.
const (
	ToHub Direction = iota
	FromHub
)

// relayPair is one relayed connection.
type relayPair struct {
	ends [2]*net.TCPConn // the leaf's end, the hub's end
	// lost says that bytes were dropped, so that the connection can never be healed, only cut.
	lost bool
}

// NewFaultProxy relays a free port of 127.0.0.1 to target. It ends with the test.
func NewFaultProxy(tb testing.TB, target string) *FaultProxy {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("listen: %v", err)
	}
	p := &FaultProxy{tb: tb, listener: l, target: target, pairs: map[*relayPair]struct{}{}}
	p.wg.Go(p.acceptLoop)
	tb.Cleanup(func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		_ = l.Close()
		p.resetPairs()
		p.wg.Wait()
	})
	return p
}

// Addr returns the address of the proxy.
func (p *FaultProxy) Addr() string { return p.listener.Addr().String() }

// Cut resets all connections (RST) and resets each new one at once, until Heal.
func (p *FaultProxy) Cut() {
	p.mu.Lock()
	p.refusing = true
	p.mu.Unlock()
	p.resetPairs()
}

// Reset resets all connections once; new ones are relayed.
func (p *FaultProxy) Reset() { p.resetPairs() }

// Silence drops all bytes of the given directions (both if none is given), until Heal. Connections stay open, and new ones open too: a
// firewall that has lost its state.
func (p *FaultProxy) Silence(directions ...Direction) {
	if len(directions) == 0 {
		directions = []Direction{ToHub, FromHub}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range directions {
		p.silent[d] = true
	}
}

// Heal relays again. Connections that have lost bytes stay silent until they are closed, as after a lost NAT entry.
func (p *FaultProxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusing, p.silent = false, [2]bool{}
}

func (p *FaultProxy) acceptLoop() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				p.tb.Errorf("proxy accept: %v", err)
			}
			return
		}
		p.openPair(c.(*net.TCPConn))
	}
}

func (p *FaultProxy) openPair(c *net.TCPConn) {
	p.mu.Lock()
	refuse := p.refusing || p.closed
	p.mu.Unlock()
	if refuse {
		closeWithReset(c)
		return
	}
	dialer := net.Dialer{Timeout: time.Second}
	h, err := dialer.DialContext(p.tb.Context(), "tcp", p.target)
	if err != nil {
		closeWithReset(c)
		return
	}
	pr := &relayPair{ends: [2]*net.TCPConn{c, h.(*net.TCPConn)}}
	p.mu.Lock()
	p.pairs[pr] = struct{}{}
	refuse = p.refusing || p.closed
	p.mu.Unlock()
	if refuse {
		p.resetPairs()
	}
	p.wg.Go(func() { p.relayBytes(pr, ToHub) })
	p.wg.Go(func() { p.relayBytes(pr, FromHub) })
}

func (p *FaultProxy) relayBytes(pr *relayPair, d Direction) {
	from, to := pr.ends[d], pr.ends[1-d]
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && p.shouldForward(pr, d) {
			if _, err := to.Write(buf[:n]); err != nil && !p.markLost(pr) {
				break
			}
		}
		if err != nil {
			break
		}
	}
	p.mu.Lock()
	keep := pr.lost && !p.closed
	if !keep {
		delete(p.pairs, pr)
	}
	p.mu.Unlock()
	_ = from.Close()
	if !keep {
		_ = to.Close() // a silent path does not carry the end of the connection either
	}
}

// shouldForward decides about bytes just read; if it drops some, the pair is marked as lost.
func (p *FaultProxy) shouldForward(pr *relayPair, d Direction) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silent[d] {
		pr.lost = true
	}
	return !pr.lost || !p.silent[d] && !p.staysSilent(pr)
}

// markLost reports whether a path is silent in one direction, and makes it silent in both: its far end is gone, and no byte may reveal
// that.
func (p *FaultProxy) markLost(pr *relayPair) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	silent := pr.lost || p.silent[ToHub] || p.silent[FromHub]
	pr.lost = silent
	return silent && !p.closed
}

// staysSilent reports whether a pair must stay silent in both directions: it lost bytes and the fault is over.
func (p *FaultProxy) staysSilent(pr *relayPair) bool {
	return pr.lost && !p.silent[ToHub] && !p.silent[FromHub]
}

func (p *FaultProxy) resetPairs() {
	p.mu.Lock()
	pairs := p.pairs
	p.pairs = map[*relayPair]struct{}{}
	p.mu.Unlock()
	for pr := range pairs {
		closeWithReset(pr.ends[0])
		closeWithReset(pr.ends[1])
	}
}

// closeWithReset closes with RST instead of FIN.
func closeWithReset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
