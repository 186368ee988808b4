package relaytest

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Config is the speed of a Relay. The zero Config is as fast as the machine.
type Config struct {
	Rate  int           // bytes per second in each direction of each connection; 0: no limit
	Delay time.Duration // of each byte, one way
}

// Direction is the direction of bytes through a Relay.
type Direction int

// The directions: from the dialling client to the target, and back.
const (
	ToTarget Direction = iota
	FromTarget
)

// dialTimeout bounds the dial to the target.
const dialTimeout = time.Second

// Relay relays TCP to a target.
type Relay struct {
	target    string
	addr      string
	cfg       Config
	forwarded [2]atomic.Int64 // bytes by direction

	mu       sync.Mutex // guards all below
	refusing bool
	silent   [2]bool // by direction
	pairs    map[*pair]struct{}
}

// pair is one relayed connection.
type pair struct {
	ends  [2]*net.TCPConn // the client's end, the target's end
	reset chan struct{}   // closes when both ends were reset
	// lost says that bytes were dropped, so that the connection can never be healed, only cut; guarded by Relay.mu.
	lost bool
}

// Start relays a free port of 127.0.0.1 to target.
func Start(tb testing.TB, target string, cfg Config) *Relay {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("listen: %v", err)
	}
	r := &Relay{target: target, addr: l.Addr().String(), cfg: cfg, pairs: map[*pair]struct{}{}}
	Serve(tb, l, func(ctx context.Context, conn net.Conn) { r.relay(ctx, conn.(*net.TCPConn)) })
	return r
}

// Addr returns the address of the relay.
func (r *Relay) Addr() string { return r.addr }

// Bytes returns how many bytes have been relayed in a direction so far.
func (r *Relay) Bytes(d Direction) int64 { return r.forwarded[d].Load() }

// Cut resets all connections (RST) and resets each new one at once, until Heal.
func (r *Relay) Cut() {
	r.mu.Lock()
	r.refusing = true
	r.mu.Unlock()
	r.Reset()
}

// Reset resets all connections once; new ones are relayed.
func (r *Relay) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.pairs {
		closeWithReset(p.ends[0])
		closeWithReset(p.ends[1])
		close(p.reset)
	}
	clear(r.pairs)
}

// Silence drops all bytes of the given directions (both if none is given), until Heal. Connections stay open, and new ones open too: a
// firewall that has lost its state.
func (r *Relay) Silence(directions ...Direction) {
	if len(directions) == 0 {
		directions = []Direction{ToTarget, FromTarget}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range directions {
		r.silent[d] = true
	}
}

// Heal relays again. Connections that have lost bytes stay silent until they are closed, as after a lost NAT entry.
func (r *Relay) Heal() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refusing, r.silent = false, [2]bool{}
}

func (r *Relay) relay(ctx context.Context, near *net.TCPConn) {
	if r.refuses() {
		closeWithReset(near)
		return
	}
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", r.target)
	if err != nil {
		closeWithReset(near)
		return
	}
	far := conn.(*net.TCPConn)
	p := &pair{ends: [2]*net.TCPConn{near, far}, reset: make(chan struct{})}
	if !r.add(p) {
		closeWithReset(near)
		closeWithReset(far)
		return
	}
	defer context.AfterFunc(ctx, func() { _ = far.Close() })()
	var both sync.WaitGroup
	both.Go(func() { r.copyBytes(ctx, p, ToTarget) })
	both.Go(func() { r.copyBytes(ctx, p, FromTarget) })
	both.Wait()
}

func (r *Relay) refuses() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refusing
}

// add makes a pair known to Reset, unless the relay refuses connections.
func (r *Relay) add(p *pair) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.refusing {
		r.pairs[p] = struct{}{}
	}
	return !r.refusing
}

// copyBytes relays one direction of a pair, and ends both when it ends; but a silent path does not carry the end of a connection either.
func (r *Relay) copyBytes(ctx context.Context, p *pair, d Direction) {
	from, to := p.ends[d], p.ends[1-d]
	size := 64 << 10
	if r.cfg.Rate > 0 { // an eighth of a second's bytes at a time
		size = max(1, r.cfg.Rate/8)
	}
	out, drain := io.Writer(to), func() {}
	if r.cfg.Delay > 0 {
		out, drain = delayWrites(to, r.cfg.Delay)
	}
	buf, due := make([]byte, size), time.Now()
	for {
		n, err := from.Read(buf)
		if n > 0 && r.shouldForward(p, d) {
			due = r.awaitTurn(due, n)
			r.forwarded[d].Add(int64(n))
			if _, err := out.Write(buf[:n]); err != nil && !r.markLost(p) {
				break
			}
		}
		if err != nil {
			break
		}
	}
	drain()
	_ = from.Close()
	if r.isLost(p) {
		select {
		case <-p.reset:
		case <-ctx.Done():
		}
	}
	_ = to.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pairs, p)
}

// awaitTurn waits until the rate allows n bytes more, and returns when that was.
func (r *Relay) awaitTurn(due time.Time, n int) time.Time {
	if r.cfg.Rate == 0 {
		return due
	}
	if now := time.Now(); due.Before(now) {
		due = now
	}
	due = due.Add(time.Duration(n) * time.Second / time.Duration(r.cfg.Rate))
	<-time.After(time.Until(due))
	return due
}

// shouldForward decides about bytes just read; if it drops some, the pair is marked as lost.
func (r *Relay) shouldForward(p *pair, d Direction) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.silent[d] {
		p.lost = true
	}
	// A pair that lost bytes stays silent in both directions when the fault is over.
	return !p.lost || !r.silent[d] && r.silent[1-d]
}

// markLost reports whether a path is silent in one direction, and makes it silent in both: its far end is gone, and no byte may reveal
// that.
func (r *Relay) markLost(p *pair) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.lost = p.lost || r.silent[ToTarget] || r.silent[FromTarget]
	return p.lost
}

func (r *Relay) isLost(p *pair) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.lost
}

// closeWithReset closes with RST instead of FIN.
func closeWithReset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
