package leaftest

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy is a TCP relay whose faults a test commands.
type Proxy struct {
	tb       testing.TB
	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu     sync.Mutex // guards all below
	closed bool
	refuse bool
	silent [2]bool // by direction
	pairs  map[*pair]struct{}
}

// Direction of bytes through a Proxy.
type Direction int

// The directions: from the dialling leaf to the hub, and back.
const (
	ToHub Direction = iota
	FromHub
)

// pair is one relayed connection.
type pair struct {
	ends [2]*net.TCPConn // the leaf's, the hub's
	// lost says that bytes were thrown away, so that the connection can never be healed, only cut.
	lost bool
}

// NewProxy relays a free port of 127.0.0.1 to target. It ends with the test.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("listen: %v", err)
	}
	p := &Proxy{tb: tb, listener: l, target: target, pairs: map[*pair]struct{}{}}
	p.wg.Go(p.accept)
	tb.Cleanup(func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		_ = l.Close()
		p.reset()
		p.wg.Wait()
	})
	return p
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut resets all connections (RST) and resets each new one at once, until Heal.
func (p *Proxy) Cut() {
	p.mu.Lock()
	p.refuse = true
	p.mu.Unlock()
	p.reset()
}

// Reset resets all connections once; new ones are relayed.
func (p *Proxy) Reset() { p.reset() }

// Silence throws away all bytes of the given directions (both for none given), until Heal. Connections stay open, and new
// ones open too: a firewall that has forgotten them.
func (p *Proxy) Silence(directions ...Direction) {
	if len(directions) == 0 {
		directions = []Direction{ToHub, FromHub}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range directions {
		p.silent[d] = true
	}
}

// Heal relays again. Connections that have lost bytes stay silent for ever, as after a lost NAT entry.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse, p.silent = false, [2]bool{}
}

func (p *Proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				p.tb.Errorf("proxy accept: %v", err)
			}
			return
		}
		p.open(c.(*net.TCPConn))
	}
}

func (p *Proxy) open(c *net.TCPConn) {
	p.mu.Lock()
	refuse := p.refuse || p.closed
	p.mu.Unlock()
	if refuse {
		abort(c)
		return
	}
	dialer := net.Dialer{Timeout: time.Second}
	h, err := dialer.DialContext(p.tb.Context(), "tcp", p.target)
	if err != nil {
		abort(c)
		return
	}
	pr := &pair{ends: [2]*net.TCPConn{c, h.(*net.TCPConn)}}
	p.mu.Lock()
	p.pairs[pr] = struct{}{}
	refuse = p.refuse || p.closed
	p.mu.Unlock()
	if refuse {
		p.reset()
	}
	p.wg.Go(func() { p.relay(pr, ToHub) })
	p.wg.Go(func() { p.relay(pr, FromHub) })
}

func (p *Proxy) relay(pr *pair, d Direction) {
	from, to := pr.ends[d], pr.ends[1-d]
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && p.passes(pr, d) {
			if _, err := to.Write(buf[:n]); err != nil && !p.spoil(pr) {
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

// passes decides on bytes just read; throwing some away spoils the pair.
func (p *Proxy) passes(pr *pair, d Direction) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silent[d] {
		pr.lost = true
	}
	return !pr.lost || !p.silent[d] && !p.spoiled(pr)
}

// spoil reports whether a path is silent one way, and makes it silent both ways: its far end is gone, and nothing may tell.
func (p *Proxy) spoil(pr *pair) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	silent := pr.lost || p.silent[ToHub] || p.silent[FromHub]
	pr.lost = silent
	return silent && !p.closed
}

// spoiled reports whether a pair must stay silent in both directions: it lost bytes and the fault is over.
func (p *Proxy) spoiled(pr *pair) bool {
	return pr.lost && !p.silent[ToHub] && !p.silent[FromHub]
}

func (p *Proxy) reset() {
	p.mu.Lock()
	pairs := p.pairs
	p.pairs = map[*pair]struct{}{}
	p.mu.Unlock()
	for pr := range pairs {
		abort(pr.ends[0])
		abort(pr.ends[1])
	}
}

// abort closes with RST instead of FIN.
func abort(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
