package wan

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// errLoud ends the connections of a link that was cut loudly.
var errLoud = errors.New("link is down")

// direction of bytes: up is from the gateway to the cloud.
type direction int

const (
	up direction = iota
	down
	directions
)

// link is one gateway's way through the Forwarder.
type link struct {
	mu     sync.Mutex
	healed [directions]chan struct{} // guarded by mu; open while cut, closed otherwise
	isCut  [directions]bool          // guarded by mu
	loud   bool                      // guarded by mu
	shape  Shape                     // guarded by mu
	bytes  [directions]int64         // guarded by mu
	conns  map[net.Conn]struct{}
}

func newLink() *link {
	l := &link{conns: map[net.Conn]struct{}{}}
	for d := range directions {
		l.healed[d] = make(chan struct{})
		close(l.healed[d])
	}
	return l
}

// cut stops the given directions; with loud it also resets every connection, present and to come.
func (l *link) cut(loud bool, ways ...direction) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range ways {
		if !l.isCut[d] {
			l.isCut[d], l.healed[d] = true, make(chan struct{})
		}
	}
	if l.loud = loud; loud {
		l.resetAll()
	}
}

func (l *link) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loud = false
	for d := range directions {
		if l.isCut[d] {
			l.isCut[d] = false
			close(l.healed[d])
		}
	}
}

// reset breaks every connection; the next ones are as good as ever.
func (l *link) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resetAll()
}

// resetAll is called with mu held.
func (l *link) resetAll() {
	for c := range l.conns {
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // close by reset
		}
		_ = c.Close()
	}
}

func (l *link) setShape(s Shape) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shape = s
}

func (l *link) getShape() Shape {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shape
}

func (l *link) snapshot() Link {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Link{
		Cut: l.isCut[up] || l.isCut[down], Loud: l.loud, Shape: l.shape, Connections: len(l.conns), UpBytes: l.bytes[up], DownBytes: l.bytes[down],
	}
}

// pass waits while the link is cut in a direction.
func (l *link) pass(ctx context.Context, way direction) error {
	l.mu.Lock()
	healed, loud := l.healed[way], l.loud
	l.mu.Unlock()
	if loud {
		return errLoud
	}
	select {
	case <-healed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *link) count(way direction, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes[way] += int64(n)
}

func (l *link) track(c net.Conn) (forget func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.conns, c)
	}
}

// carry moves bytes between an accepted connection and target until both directions have ended or ctx does.
func (l *link) carry(ctx context.Context, c net.Conn, target string) error {
	defer func() { _ = c.Close() }()
	defer l.track(c)()
	for way := range directions {
		if err := l.pass(ctx, way); err != nil {
			return err
		}
	}
	d := net.Dialer{Timeout: dialTimeout}
	t, err := d.DialContext(ctx, "tcp", target)
	if err != nil {
		return fmt.Errorf("dial hub: %w", err)
	}
	defer func() { _ = t.Close() }()
	g, gctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(gctx, func() {
		_ = c.SetDeadline(time.Unix(1, 0)) // long past: ends the reads and writes below
		_ = t.SetDeadline(time.Unix(1, 0))
	})()
	g.Go(func() error { return l.copy(gctx, t, c, up) })
	g.Go(func() error { return l.copy(gctx, c, t, down) })
	return g.Wait()
}

// parcel is what one read took, on its way.
type parcel struct {
	data []byte
	due  time.Time
	end  bool
}

// underway is how many parcels travel at once: 256 KiB, what a link of 600 ms round trip needs for 0.8 MB/s.
const underway = 16

// copy moves bytes from src to dst. What was read stays here while the link is cut, and so does the news of the end.
func (l *link) copy(ctx context.Context, dst, src net.Conn, way direction) error {
	parcels := make(chan parcel, underway)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.take(gctx, src, parcels) })
	g.Go(func() error {
		for {
			select {
			case <-gctx.Done():
				return gctx.Err()
			case p := <-parcels:
				if done, err := l.give(gctx, dst, p, way); done || err != nil {
					return err
				}
			}
		}
	})
	return g.Wait()
}

// take reads until the end, which is a parcel too.
func (l *link) take(ctx context.Context, src net.Conn, parcels chan<- parcel) error {
	buf := make([]byte, chunk)
	for {
		n, err := src.Read(buf[:l.getShape().read()])
		p := parcel{data: bytes.Clone(buf[:n]), due: time.Now().Add(l.getShape().Delay), end: errors.Is(err, io.EOF)}
		if err != nil && !p.end {
			return err
		}
		select {
		case parcels <- p:
		case <-ctx.Done():
			return ctx.Err()
		}
		if p.end {
			return nil
		}
	}
}

// give writes a parcel when it is due, and tells whether it was the last.
func (l *link) give(ctx context.Context, dst net.Conn, p parcel, way direction) (last bool, err error) {
	if err := l.getShape().hold(ctx, p.due, len(p.data)); err != nil {
		return false, err
	}
	if err := l.pass(ctx, way); err != nil {
		return false, err
	}
	if len(p.data) > 0 {
		l.count(way, len(p.data))
		if _, err := dst.Write(p.data); err != nil {
			return false, err
		}
	}
	if half, ok := dst.(interface{ CloseWrite() error }); ok && p.end {
		return true, half.CloseWrite()
	}
	return p.end, nil
}
