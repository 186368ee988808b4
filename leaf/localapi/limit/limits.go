// Package limit bounds what one caller of the local API may use: requests, watches, connections, and time.
package limit

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

	"github.com/frond-edge/frond/leaf/localapi/caller"
	"github.com/frond-edge/frond/leaf/localapi/respond"
)

const (
	// maxRequests and maxWatches limit the open requests of one pod, or of one user without a pod. An operator of 30 kinds
	// has 30 watches, and lists them all when it starts.
	maxRequests = 64
	maxWatches  = 128
	// MaxAccountRelays limits the gateway's relayed watches of one of them.
	MaxAccountRelays = 8
	// MaxConcurrentLists limits how many lists are read from the store and decoded at once for programs other than the
	// node: each uses memory for all its objects, and more at once are not faster on a gateway's few cores.
	MaxConcurrentLists = 8
	// maxConnections limits one address' connections to a listener for pods: HTTP/2 needs one per client.
	maxConnections = 128
	// transferTimeout is how long one write to a client may take, and the reading of a request's whole body. The kernel's
	// buffers and HTTP/2's window accept about 100 kB at once, so only a client that does not read at all is cut off.
	transferTimeout = 30 * time.Second
)

// Limits counts the open requests of each caller. A caller other than the node cannot use up the capacity of the others.
type Limits struct {
	listSlots chan struct{} // a token for each list that is made for a program other than the node

	mu    sync.Mutex // guards all fields below
	usage map[string]*callerUsage
}

type callerUsage struct{ requests, watches, relays int }

// New creates Limits without any use.
func New() *Limits {
	return &Limits{listSlots: make(chan struct{}, MaxConcurrentLists), usage: map[string]*callerUsage{}}
}

// AdmitRequest admits a request until leave, or returns the reason for its refusal.
func (l *Limits) AdmitRequest(c caller.Caller, watching bool) (leave func(), err error) {
	if watching {
		return l.acquireSlot(c, maxWatches, "watches", func(u *callerUsage) *int { return &u.watches })
	}
	return l.acquireSlot(c, maxRequests, "requests", func(u *callerUsage) *int { return &u.requests })
}

// AdmitRelay admits a relayed watch until leave, or returns the reason for its refusal.
func (l *Limits) AdmitRelay(c caller.Caller) (leave func(), err error) {
	return l.acquireSlot(c, MaxAccountRelays, "watches that are relayed", func(u *callerUsage) *int { return &u.relays })
}

// AdmitList admits the making of a list until done, and waits if there are too many. The node does not wait for others.
func (l *Limits) AdmitList(ctx context.Context) (done func(), err error) {
	if caller.Of(ctx).Trusted {
		return func() {}, nil
	}
	select {
	case l.listSlots <- struct{}{}:
		return func() { <-l.listSlots }, nil
	case <-ctx.Done():
		return nil, respond.RetryLater("too many lists are being read on this gateway")
	}
}

func (l *Limits) acquireSlot(c caller.Caller, most int, what string, of func(*callerUsage) *int) (leave func(), err error) {
	key := c.QuotaKey()
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.usage[key]
	if u == nil {
		u = &callerUsage{}
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
		if *count--; *u == (callerUsage{}) {
			delete(l.usage, key)
		}
	}, nil
}

// Writer is a response writer with a deadline for each write, for slow clients. It records the status for metrics.
type Writer struct {
	http.ResponseWriter
	controller *http.ResponseController
	code       int
}

// NewWriter returns a Writer over the answer of a request.
func NewWriter(w http.ResponseWriter) *Writer {
	return &Writer{ResponseWriter: w, controller: http.NewResponseController(w), code: http.StatusOK}
}

// Status returns the status that was sent.
func (p *Writer) Status() int { return p.code }

// Unwrap is for http.ResponseController.
func (p *Writer) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (p *Writer) WriteHeader(code int) {
	p.code = code
	p.ResponseWriter.WriteHeader(code)
}

// setWriteDeadline sets the deadline of one write. HTTP/2 ends a stream after its deadline even if nothing is being
// written, so done removes it.
func (p *Writer) setWriteDeadline() (done func()) {
	_ = p.controller.SetWriteDeadline(time.Now().Add(transferTimeout)) // every server of this package supports deadlines
	return func() { _ = p.controller.SetWriteDeadline(time.Time{}) }
}

// Write implements http.ResponseWriter.
func (p *Writer) Write(b []byte) (int, error) {
	defer p.setWriteDeadline()()
	return p.ResponseWriter.Write(b)
}

// Flush sends buffered data; watches use it.
func (p *Writer) Flush() {
	defer p.setWriteDeadline()()
	_ = p.controller.Flush() // a client that has gone away makes the next write fail
}

// Reader is a request body with a deadline, from its first read to its end.
type Reader struct {
	io.ReadCloser
	controller *http.ResponseController
	started    bool
}

// NewReader returns the body of the request that w answers.
func NewReader(body io.ReadCloser, w *Writer) *Reader {
	return &Reader{ReadCloser: body, controller: w.controller}
}

// Read implements io.Reader.
func (h *Reader) Read(b []byte) (int, error) {
	if !h.started {
		h.started = true
		_ = h.controller.SetReadDeadline(time.Now().Add(transferTimeout))
	}
	n, err := h.ReadCloser.Read(b)
	if errors.Is(err, io.EOF) {
		_ = h.controller.SetReadDeadline(time.Time{})
	}
	return n, err
}

// connLimitListener is a listener that limits the connections of each address and closes those of refused peers.
type connLimitListener struct {
	net.Listener
	refusePeer func(peer netip.Addr) bool
	mu         sync.Mutex // guards open
	openByPeer map[netip.Addr]int
}

// NewListener limits the connections of each address to a listener, and closes those of peers that refused reports.
func NewListener(l net.Listener, refused func(peer netip.Addr) bool) net.Listener {
	return &connLimitListener{Listener: l, refusePeer: refused, openByPeer: map[netip.Addr]int{}}
}

func (f *connLimitListener) Accept() (net.Conn, error) {
	for {
		conn, err := f.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := netip.Addr{}
		if at, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
			from = at.Addr()
		}
		if f.refusePeer(from) {
			_ = conn.Close() // before any byte is read
			continue
		}
		f.mu.Lock()
		full := f.openByPeer[from] >= maxConnections
		if !full {
			f.openByPeer[from]++
		}
		f.mu.Unlock()
		if full {
			_ = conn.Close()
			continue
		}
		return &limitedConn{Conn: conn, release: sync.OnceFunc(func() { f.releaseConn(from) })}, nil
	}
}

func (f *connLimitListener) releaseConn(from netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.openByPeer[from]--; f.openByPeer[from] == 0 {
		delete(f.openByPeer, from)
	}
}

type limitedConn struct {
	net.Conn
	release func()
}

func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
