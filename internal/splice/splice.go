// Package splice joins two byte streams.
//
// Join owns both connections from the call on: when it returns, both are closed and no goroutine is left.
package splice

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// lingerTimeout is how long one direction may continue after the other has ended. The traffic is TLS or a scrape: neither ends one
// direction long before the other, so a side that takes longer is broken or hostile.
const lingerTimeout = 10 * time.Second

// ErrLinger reports that one side ended and the other continued for too long.
var ErrLinger = errors.New("one side ended and the other went on for too long")

// Result is the outcome of a Join.
type Result struct {
	// Sent counts the bytes from the first connection to the second, Received those in the other direction.
	Sent, Received int64
	// Err is the first failure; nil when both sides ended in order.
	Err error
}

// Join copies in both directions until both have ended or one has failed. It passes the end of one direction on as a half-close
// (CloseWrite) where the connection supports it, and otherwise closes both.
func Join(near, far net.Conn) Result {
	var (
		result Result
		first  sync.Once
		timer  *time.Timer // written once, by the direction that ends first
		one    sync.Once
		ended  sync.WaitGroup
	)
	end := func(err error) {
		first.Do(func() { result.Err = err })
		resetAndClose(near, err)
		resetAndClose(far, err)
	}
	copies := func(to, from net.Conn, n *int64) {
		var err error
		*n, err = io.Copy(to, from)
		half, ok := to.(interface{ CloseWrite() error })
		if err != nil || !ok || half.CloseWrite() != nil { // CloseWrite fails where the other side is gone
			end(err)
			return
		}
		one.Do(func() { timer = time.AfterFunc(lingerTimeout, func() { end(ErrLinger) }) })
	}
	ended.Go(func() { copies(far, near, &result.Sent) })
	ended.Go(func() { copies(near, far, &result.Received) })
	ended.Wait()
	if timer != nil {
		timer.Stop()
	}
	end(nil)
	return result
}

// resetAndClose closes a connection. A connection that can report a failure to its other end does so.
func resetAndClose(conn net.Conn, err error) {
	if teller, ok := conn.(interface{ Reset(reason string) }); ok && err != nil {
		teller.Reset(err.Error())
	}
	_ = conn.Close() // given up; there is no recipient for an error
}
