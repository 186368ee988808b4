package wan

import (
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

// link is one gateway's way through the Forwarder.
type link struct {
	mu     sync.Mutex
	healed chan struct{} // guarded by mu; open while cut, closed otherwise
	isCut  bool          // guarded by mu
	loud   bool          // guarded by mu
	up     int64         // guarded by mu; bytes
	down   int64         // guarded by mu; bytes
	conns  map[net.Conn]struct{}
}

func newLink() *link {
	l := &link{healed: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	close(l.healed)
	return l
}

func (l *link) cut(loud bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.isCut {
		l.isCut, l.healed = true, make(chan struct{})
	}
	if l.loud = loud; loud {
		for c := range l.conns {
			if t, ok := c.(*net.TCPConn); ok {
				_ = t.SetLinger(0) // close by reset
			}
			_ = c.Close()
		}
	}
}

func (l *link) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isCut {
		l.isCut, l.loud = false, false
		close(l.healed)
	}
}

func (l *link) snapshot() Link {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Link{Cut: l.isCut, Loud: l.loud, Connections: len(l.conns), UpBytes: l.up, DownBytes: l.down}
}

// pass waits while the link is cut.
func (l *link) pass(ctx context.Context) error {
	l.mu.Lock()
	healed, loud := l.healed, l.isCut && l.loud
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

func (l *link) count(up bool, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if up {
		l.up += int64(n)
	} else {
		l.down += int64(n)
	}
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
	if err := l.pass(ctx); err != nil {
		return err
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
	g.Go(func() error { return l.copy(gctx, t, c, true) })
	g.Go(func() error { return l.copy(gctx, c, t, false) })
	return g.Wait()
}

// copy moves bytes from src to dst. What was read stays here while the link is cut, and so does the news of the end.
func (l *link) copy(ctx context.Context, dst, src net.Conn, up bool) error {
	buf := make([]byte, chunk)
	for {
		n, readErr := src.Read(buf)
		if err := l.pass(ctx); err != nil {
			return err
		}
		if n > 0 {
			l.count(up, n)
			if _, err := dst.Write(buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(readErr, io.EOF) {
			if half, ok := dst.(interface{ CloseWrite() error }); ok {
				return half.CloseWrite()
			}
			return nil
		}
		if readErr != nil {
			return readErr
		}
	}
}
