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

// errLinkDown ends the connections of a link that was cut loudly.
var errLinkDown = errors.New("link is down")

// direction is a direction of traffic: up is from the gateway to the cloud.
type direction int

const (
	up direction = iota
	down
	directions
)

// edgeLink is one gateway's link through the Forwarder.
type edgeLink struct {
	mu     sync.Mutex
	healed [directions]chan struct{} // guarded by mu; open while cut, closed otherwise
	isCut  [directions]bool          // guarded by mu
	loud   bool                      // guarded by mu
	shape  Shape                     // guarded by mu
	bytes  [directions]int64         // guarded by mu
	conns  map[net.Conn]struct{}
}

func newLink() *edgeLink {
	l := &edgeLink{conns: map[net.Conn]struct{}{}}
	for d := range directions {
		l.healed[d] = make(chan struct{})
		close(l.healed[d])
	}
	return l
}

// cut stops the given directions; with loud it also resets every present and future connection.
func (l *edgeLink) cut(loud bool, ways ...direction) {
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

func (l *edgeLink) heal() {
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

// reset breaks every connection; new ones are not affected.
func (l *edgeLink) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resetAll()
}

// resetAll breaks every connection. The caller holds mu.
func (l *edgeLink) resetAll() {
	for c := range l.conns {
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // close by reset
		}
		_ = c.Close()
	}
}

func (l *edgeLink) setShape(s Shape) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shape = s
}

func (l *edgeLink) getShape() Shape {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shape
}

func (l *edgeLink) snapshot() Link {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Link{
		Cut: l.isCut[up] || l.isCut[down], Loud: l.loud, Shape: l.shape, Connections: len(l.conns), UpBytes: l.bytes[up], DownBytes: l.bytes[down],
	}
}

// awaitHealed blocks while the link is cut in a direction.
func (l *edgeLink) awaitHealed(ctx context.Context, way direction) error {
	l.mu.Lock()
	healed, loud := l.healed[way], l.loud
	l.mu.Unlock()
	if loud {
		return errLinkDown
	}
	select {
	case <-healed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *edgeLink) countBytes(way direction, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes[way] += int64(n)
}

func (l *edgeLink) trackConn(c net.Conn) (forget func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.conns, c)
	}
}

// forwardConn moves bytes between an accepted connection and target until both directions have ended or ctx does.
func (l *edgeLink) forwardConn(ctx context.Context, c net.Conn, target string) error {
	defer func() { _ = c.Close() }()
	defer l.trackConn(c)()
	for way := range directions {
		if err := l.awaitHealed(ctx, way); err != nil {
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
	g.Go(func() error { return l.copyDirection(gctx, t, c, up) })
	g.Go(func() error { return l.copyDirection(gctx, c, t, down) })
	return g.Wait()
}

// timedChunk is the data of one read, with the time at which it is due.
type timedChunk struct {
	data []byte
	due  time.Time
	last bool
}

// maxChunksInFlight bounds the chunks in flight: 256 KiB, enough for 0.8 MB/s over a link of 600 ms round trip.
const maxChunksInFlight = 16

// copyDirection moves bytes from src to dst. While the link is cut it holds back the bytes read, and also the end of the stream.
func (l *edgeLink) copyDirection(ctx context.Context, dst, src net.Conn, way direction) error {
	parcels := make(chan timedChunk, maxChunksInFlight)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.readChunks(gctx, src, parcels) })
	g.Go(func() error {
		for {
			select {
			case <-gctx.Done():
				return gctx.Err()
			case p := <-parcels:
				if done, err := l.writeChunk(gctx, dst, p, way); done || err != nil {
					return err
				}
			}
		}
	})
	return g.Wait()
}

// readChunks reads until the end of the stream, which is a chunk too.
func (l *edgeLink) readChunks(ctx context.Context, src net.Conn, parcels chan<- timedChunk) error {
	buf := make([]byte, chunkSize)
	for {
		n, err := src.Read(buf[:l.getShape().readSize()])
		p := timedChunk{data: bytes.Clone(buf[:n]), due: time.Now().Add(l.getShape().Delay), last: errors.Is(err, io.EOF)}
		if err != nil && !p.last {
			return err
		}
		select {
		case parcels <- p:
		case <-ctx.Done():
			return ctx.Err()
		}
		if p.last {
			return nil
		}
	}
}

// writeChunk writes a chunk when it is due, and reports whether it was the last.
func (l *edgeLink) writeChunk(ctx context.Context, dst net.Conn, p timedChunk, way direction) (last bool, err error) {
	if err := l.getShape().waitTransfer(ctx, p.due, len(p.data)); err != nil {
		return false, err
	}
	if err := l.awaitHealed(ctx, way); err != nil {
		return false, err
	}
	if len(p.data) > 0 {
		l.countBytes(way, len(p.data))
		if _, err := dst.Write(p.data); err != nil {
			return false, err
		}
	}
	if half, ok := dst.(interface{ CloseWrite() error }); ok && p.last {
		return true, half.CloseWrite()
	}
	return p.last, nil
}
