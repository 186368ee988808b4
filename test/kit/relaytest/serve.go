// Package relaytest gives tests TCP relays: between a client and a server, with faults, a rate and a delay that the test controls, and for
// handlers of the test's own.
//
// Everything that it starts ends with the test.
package relaytest

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// Serve accepts connections until the test ends. handle owns its connection until it returns; the connection is closed then, and when the
// test ends, which also cancels ctx.
func Serve(tb testing.TB, l net.Listener, handle func(ctx context.Context, conn net.Conn)) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					tb.Errorf("relay: %v", err)
				}
				return
			}
			serving.Go(func() {
				defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
				defer func() { _ = conn.Close() }()
				handle(ctx, conn)
			})
		}
	})
	tb.Cleanup(func() {
		cancel()
		_ = l.Close()
		serving.Wait()
	})
}

// Join copies bytes between two connections until one of them ends or ctx does, and closes both. The bytes of near are read from in, which
// may have read some already.
func Join(ctx context.Context, near net.Conn, in io.Reader, far net.Conn) {
	defer context.AfterFunc(ctx, func() { _ = far.Close() })()
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(far, in)
		_ = far.Close()
	})
	both.Go(func() {
		_, _ = io.Copy(near, far)
		_ = near.Close()
	})
	both.Wait()
}
