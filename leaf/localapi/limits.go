package localapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

const (
	// maxRequests and maxWatches bound what one pod, or one user without a pod, has open at once. An operator of 30 kinds has
	// 30 watches, and lists them all when it starts.
	maxRequests = 64
	maxWatches  = 128
	// maxAccountRelays is how many of the gateway's relayed watches one of them has.
	maxAccountRelays = 8
	// maxReading is how many lists are read from the store and decoded at once for programs that are not the node: each takes
	// memory for all its objects, and more at once are not faster on a gateway's few cores.
	maxReading = 8
	// maxConnections bounds one address' connections to a listener for pods: HTTP/2 needs one of each client.
	maxConnections = 128
	// slowest is how long one write to a client may take, and all of a request's body. The kernel's buffers and HTTP/2's window
	// take some 100 kB at once, so only a client that does not read at all is cut off.
	slowest = 30 * time.Second
)

// limits counts what callers have open. A caller that is not the node cannot take all of it from the others.
type limits struct {
	mu    sync.Mutex // guards all below
	usage map[string]*usage
}

type usage struct{ requests, watches, relays int }

func newLimits() *limits { return &limits{usage: map[string]*usage{}} }

// account is whom a caller's use counts for: its pod, or its user if that has none; "" for the node itself.
func (c caller) account() string {
	if c.user == nil {
		return ""
	}
	if pod := c.user.GetExtra()[serviceaccount.PodUIDKey]; len(pod) == 1 {
		return pod[0]
	}
	return c.user.GetName()
}

// read admits the making of a list until done, and waits if there are too many. The node does not wait for others.
func (s *Server) read(ctx context.Context) (done func(), err error) {
	if callerOf(ctx).trusted {
		return func() {}, nil
	}
	select {
	case s.reading <- struct{}{}:
		return func() { <-s.reading }, nil
	case <-ctx.Done():
		return nil, later("too many lists are being read on this gateway")
	}
}

// enter admits a request until leave, or says why not.
func (l *limits) enter(c caller, watching bool) (leave func(), err error) {
	if watching {
		return l.count(c, maxWatches, "watches", func(u *usage) *int { return &u.watches })
	}
	return l.count(c, maxRequests, "requests", func(u *usage) *int { return &u.requests })
}

// relay admits a relayed watch until leave, or says why not.
func (l *limits) relay(c caller) (leave func(), err error) {
	return l.count(c, maxAccountRelays, "watches that are relayed", func(u *usage) *int { return &u.relays })
}

func (l *limits) count(c caller, most int, what string, of func(*usage) *int) (leave func(), err error) {
	key := c.account()
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.usage[key]
	if u == nil {
		u = &usage{}
		l.usage[key] = u
	}
	count := of(u)
	if *count >= most {
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("%d %s are open already", most, what), 1)
	}
	*count++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if *count--; *u == (usage{}) {
			delete(l.usage, key)
		}
	}, nil
}

// patient is a response to a client that may be slow, but not for ever. It notes the status for metrics.
type patient struct {
	http.ResponseWriter
	rc   *http.ResponseController
	code int
}

func newPatient(w http.ResponseWriter) *patient {
	return &patient{ResponseWriter: w, rc: http.NewResponseController(w), code: http.StatusOK}
}

func (p *patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p *patient) WriteHeader(code int) {
	p.code = code
	p.ResponseWriter.WriteHeader(code)
}

// hurry gives one write its time. HTTP/2 ends a stream whose time is up even if nothing is being written, so it is taken
// back afterwards.
func (p *patient) hurry() (done func()) {
	_ = p.rc.SetWriteDeadline(time.Now().Add(slowest)) // every server of ours has deadlines
	return func() { _ = p.rc.SetWriteDeadline(time.Time{}) }
}

func (p *patient) Write(b []byte) (int, error) {
	defer p.hurry()()
	return p.ResponseWriter.Write(b)
}

// Flush is what watches are sent by.
func (p *patient) Flush() {
	defer p.hurry()()
	_ = p.rc.Flush() // a client that has gone away shows at the next write
}

// hurried gives a request's body its time, from its first read to its end.
type hurried struct {
	io.ReadCloser
	rc    *http.ResponseController
	begun bool
}

func (h *hurried) Read(b []byte) (int, error) {
	if !h.begun {
		h.begun = true
		_ = h.rc.SetReadDeadline(time.Now().Add(slowest))
	}
	n, err := h.ReadCloser.Read(b)
	if errors.Is(err, io.EOF) {
		_ = h.rc.SetReadDeadline(time.Time{})
	}
	return n, err
}

// fair is a listener that takes only so many connections of one address, and none of those that are refused.
type fair struct {
	net.Listener
	refused func(peer netip.Addr) bool
	mu      sync.Mutex // guards open
	open    map[netip.Addr]int
}

func newFair(l net.Listener, refused func(peer netip.Addr) bool) *fair {
	return &fair{Listener: l, refused: refused, open: map[netip.Addr]int{}}
}

func (f *fair) Accept() (net.Conn, error) {
	for {
		conn, err := f.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := netip.Addr{}
		if at, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
			from = at.Addr()
		}
		if f.refused(from) {
			_ = conn.Close() // before a byte is read of it
			continue
		}
		f.mu.Lock()
		full := f.open[from] >= maxConnections
		if !full {
			f.open[from]++
		}
		f.mu.Unlock()
		if full {
			_ = conn.Close()
			continue
		}
		return &fairConn{Conn: conn, leave: sync.OnceFunc(func() { f.leave(from) })}, nil
	}
}

func (f *fair) leave(from netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open[from]--; f.open[from] == 0 {
		delete(f.open, from)
	}
}

type fairConn struct {
	net.Conn
	leave func()
}

func (c *fairConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
