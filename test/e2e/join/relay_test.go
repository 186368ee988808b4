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
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/relaytest"
)

// dialTimeout bounds the dial to a target.
const dialTimeout = 10 * time.Second

// relayCall is one connection to a relay, and all bytes that the client sent.
type relayCall struct {
	from string
	mu   sync.Mutex
	said []byte // guarded by mu
}

// Write records sent bytes.
func (c *relayCall) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, p...)
	return len(p), nil
}

func (c *relayCall) bytesRead() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.said)
}

// relay is a listener in the cloud that forwards connections, as a load balancer does, and records the bytes sent to it.
type relay struct {
	mu    sync.Mutex
	calls []*relayCall // guarded by mu
}

// startRelay serves an address in a namespace until the test ends. serve owns the connection until it returns; it is closed when the
// test ends.
func startRelay(t *testing.T, namespace, address string, serve func(ctx context.Context, conn net.Conn, c *relayCall)) *relay {
	t.Helper()
	l, err := wan.Listen(namespace, address)
	kit.Must(t, err)
	r := &relay{}
	relaytest.Serve(t, l, func(ctx context.Context, conn net.Conn) {
		c := &relayCall{from: conn.RemoteAddr().String()}
		r.mu.Lock()
		r.calls = append(r.calls, c)
		r.mu.Unlock()
		serve(ctx, conn, c)
	})
	return r
}

// callsSince returns the calls after the first n.
func (r *relay) callsSince(n int) []*relayCall {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls[n:])
}

func (r *relay) callCount() int { return len(r.callsSince(0)) }

// forwardTo returns a serve function that forwards to the first target that answers, in rotation.
func forwardTo(namespace string, targets ...string) func(context.Context, net.Conn, *relayCall) {
	var mu sync.Mutex
	next := 0
	return func(ctx context.Context, conn net.Conn, c *relayCall) {
		mu.Lock()
		next++
		first := next
		mu.Unlock()
		for i := range targets {
			dctx, cancel := context.WithTimeout(ctx, dialTimeout)
			to, err := wan.Dial(dctx, namespace, targets[(first+i)%len(targets)])
			cancel()
			if err == nil {
				relaytest.Join(ctx, conn, io.TeeReader(conn, c), to)
				return
			}
		}
	}
}

// connectProxy serves HTTP CONNECT to the known hosts and ports, and refuses others.
func connectProxy(namespace string, known map[string]string) func(context.Context, net.Conn, *relayCall) {
	return func(ctx context.Context, conn net.Conn, c *relayCall) {
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
		relaytest.Join(ctx, conn, io.TeeReader(in, c), to)
	}
}

// tlsRecords parses the TLS records in recorded bytes: types and lengths. A partial record at the end counts as one.
func tlsRecords(said []byte) (kinds []byte, lengths []int, err error) {
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
