package join_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// dialTimeout is how long a relay tries to get on.
const dialTimeout = 10 * time.Second

// call is one connection that came to a relay, and all that was said by who called.
type call struct {
	from string
	mu   sync.Mutex
	said []byte // guarded by mu
}

// Write notes what was said.
func (c *call) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, p...)
	return len(p), nil
}

func (c *call) all() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.said)
}

// relay is a listener in the cloud that passes on what comes, as what balances load does, and remembers what was said to it.
type relay struct {
	mu    sync.Mutex
	calls []*call // guarded by mu
}

// listen serves an address in a namespace until the test ends. serve owns the connection until it returns; it is closed when the
// test ends.
func listen(t *testing.T, namespace, address string, serve func(ctx context.Context, conn net.Conn, c *call)) *relay {
	t.Helper()
	l, err := wan.Listen(namespace, address)
	must(t, err)
	r := &relay{}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c := &call{from: conn.RemoteAddr().String()}
			r.mu.Lock()
			r.calls = append(r.calls, c)
			r.mu.Unlock()
			serving.Go(func() {
				defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
				defer func() { _ = conn.Close() }()
				serve(ctx, conn, c)
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		serving.Wait()
	})
	return r
}

// since returns the calls after the first n.
func (r *relay) since(n int) []*call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls[n:])
}

func (r *relay) count() int { return len(r.since(0)) }

// pass returns a serve that leads to the first of the targets that answers, another one each time.
func pass(namespace string, targets ...string) func(context.Context, net.Conn, *call) {
	var mu sync.Mutex
	next := 0
	return func(ctx context.Context, conn net.Conn, c *call) {
		mu.Lock()
		next++
		first := next
		mu.Unlock()
		for i := range targets {
			dctx, cancel := context.WithTimeout(ctx, dialTimeout)
			to, err := wan.Dial(dctx, namespace, targets[(first+i)%len(targets)])
			cancel()
			if err == nil {
				couple(ctx, conn, conn, to, c)
				return
			}
		}
	}
}

// couple carries bytes both ways until one end has no more. What is read of conn is noted.
func couple(ctx context.Context, from io.Reader, conn, to net.Conn, c *call) {
	defer context.AfterFunc(ctx, func() { _ = to.Close() })()
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(to, io.TeeReader(from, c))
		_ = to.Close()
	})
	both.Go(func() {
		_, _ = io.Copy(conn, to)
		_ = conn.Close()
	})
	both.Wait()
}

// proxy serves HTTP CONNECT to the hosts and ports that it knows, and to no others.
func proxy(namespace string, known map[string]string) func(context.Context, net.Conn, *call) {
	return func(ctx context.Context, conn net.Conn, c *call) {
		in := bufio.NewReader(conn)
		request, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = fmt.Fprintf(c, "%s %s\n", request.Method, request.Host)
		target := known[request.Host]
		if request.Method != http.MethodConnect || target == "" {
			_, _ = io.WriteString(conn, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
			return
		}
		to, err := wan.Dial(ctx, namespace, target)
		if err != nil {
			_, _ = io.WriteString(conn, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
			return
		}
		if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
			_ = to.Close()
			return
		}
		couple(ctx, in, conn, to, c)
	}
}

// records are the TLS records in what somebody said: kinds and lengths. Half a record at the end counts as one.
func records(said []byte) (kinds []byte, lengths []int, err error) {
	const header = 5
	for len(said) > 0 {
		if len(said) < header {
			return kinds, lengths, errors.New("it ends within a header")
		}
		n := int(said[3])<<8 | int(said[4])
		kinds, lengths = append(kinds, said[0]), append(lengths, n)
		said = said[min(len(said), header+n):]
	}
	return kinds, lengths, nil
}
