package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/config"
)

// Direct configures how kube-apiservers without a proxy reach nodes: a port for each node (SetPorts), which leads to
// its kubelet. The zero value is off.
type Direct struct {
	// Enabled opens the assigned ports.
	Enabled bool
	// Listen is the IP address; "" means all.
	Listen string
	// From are the networks that may connect; nil means none. The kubelet still authenticates each connection.
	From []netip.Prefix
	// CertFile and KeyFile serve the reason why a node is not reached; "": no reason is sent.
	CertFile, KeyFile string
}

const (
	// listenRetry is the delay before a port that could not be opened is tried again.
	listenRetry = 5 * time.Second
	// acceptRetry is the pause after a failed accept.
	acceptRetry = 100 * time.Millisecond
	// reasonTimeout bounds sending the reason to a caller; most of the 3 s of a user have passed.
	reasonTimeout = 2 * time.Second
)

// portTable holds the node of each port.
type portTable struct {
	changed chan struct{} // with a buffer of 1: nodes was changed

	mu    sync.Mutex
	nodes map[uint16]string // guarded by mu; replaced, never changed
}

func newPortTable() *portTable { return &portTable{changed: make(chan struct{}, 1)} }

func (t *portTable) setNodes(nodes map[uint16]string) {
	t.mu.Lock()
	t.nodes = nodes
	t.mu.Unlock()
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// all returns the node of each port; the caller must not change the map.
func (t *portTable) all() map[uint16]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.nodes
}

// nodeAt returns the node of a port.
func (t *portTable) nodeAt(port uint16) string { return t.all()[port] }

// portServer serves the assigned ports, each of which leads to the kubelet of its node.
type portServer struct {
	cfg       Config
	table     *portTable
	dialer    *nodeDialer
	connLimit *connLimiter
	refusals  refusalLog
	metrics   *metrics
	log       *zap.Logger
}

// servePorts listens on the assigned ports until ctx ends; then it ends all streams.
func (s *portServer) servePorts(ctx context.Context) error {
	if !s.cfg.Direct.Enabled {
		<-ctx.Done() // a gateway without any address also runs until ctx ends
		return nil
	}
	open := map[uint16]net.Listener{}
	var conns errgroup.Group
	defer func() {
		for _, l := range open {
			_ = l.Close() // no further connections are accepted
		}
		_ = conns.Wait() // the goroutines return nil
	}()
	for {
		again := s.updateListeners(ctx, open, &conns)
		timer := time.NewTimer(listenRetry)
		if !again {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-s.table.changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// updateListeners opens and closes listeners so that the open ports are the assigned ones, and reports whether some
// could not be opened.
func (s *portServer) updateListeners(ctx context.Context, open map[uint16]net.Listener, conns *errgroup.Group) (again bool) {
	given := s.table.all()
	for port, l := range open {
		if given[port] == "" {
			_ = l.Close() // its streams end with their node
			delete(open, port)
		}
	}
	for port, node := range given {
		if open[port] != nil {
			continue
		}
		l, err := listenTCP(ctx, s.cfg, net.JoinHostPort(s.cfg.Direct.Listen, strconv.Itoa(int(port))))
		if err != nil {
			s.log.Error("port of a node not opened", zap.String("node", node), zap.Uint16("port", port), zap.Error(err))
			again = true
			continue
		}
		open[port] = l
		conns.Go(func() error {
			s.acceptConns(ctx, l, port, conns)
			return nil
		})
	}
	s.metrics.ports.Set(float64(len(open)))
	return again
}

// acceptConns serves the connections to a port until it is closed.
func (s *portServer) acceptConns(ctx context.Context, l net.Listener, port uint16, conns *errgroup.Group) {
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			conns.Go(func() error {
				s.serveDirect(ctx, conn, port)
				return nil
			})
			continue
		case errors.Is(err, net.ErrClosed):
			return
		}
		s.log.Error("connection to a port of a node not taken", zap.Uint16("port", port), zap.Error(err)) // e.s. too many open files
		select {
		case <-ctx.Done():
			return
		case <-time.After(acceptRetry):
		}
	}
}

// peekedConn is a connection whose first bytes have been read ahead.
type peekedConn struct {
	net.Conn
	r *bufio.Reader
}

func (h peekedConn) Read(p []byte) (int, error) { return h.r.Read(p) }

func (h peekedConn) CloseWrite() error { return h.Conn.(*net.TCPConn).CloseWrite() }

// serveDirect connects a connection to the kubelet of the node that has the port.
func (s *portServer) serveDirect(ctx context.Context, raw net.Conn, port uint16) {
	defer context.AfterFunc(ctx, func() { _ = raw.Close() })() // abandoned
	near, by, target := peekedConn{raw, bufio.NewReader(raw)}, raw.RemoteAddr().String(), "port "+strconv.Itoa(int(port))
	leave, err := s.admitConn(by, port)
	if err != nil {
		s.refusals.recordRefusal(by, target, err)
		_ = raw.Close() // without an answer, which would cost a handshake
		return
	}
	defer leave()
	far, err := s.dialDirect(ctx, near, by, port)
	if err != nil {
		s.refusals.recordRefusal(by, target, err)
		if why, ok := err.(*refusal); ok && why.label != refusedRequest { //nolint:errorlint // made by the line above
			s.sendReason(ctx, near, why)
		}
		_ = raw.Close() // there is nothing more to send
		return
	}
	spliceConns(ctx, near, far)
}

// dialDirect opens a stream to the node that has a port. A connection that does not begin as TLS is not for a kubelet,
// and must not use the node's link. An error is a *refusal.
func (s *portServer) dialDirect(ctx context.Context, near peekedConn, by string, port uint16) (net.Conn, error) {
	if err := near.SetReadDeadline(time.Now().Add(headerTimeout)); err != nil {
		return nil, &refusal{label: refusedRequest, text: err.Error()}
	}
	const record, version = 0x16, 0x03 // of a TLS handshake
	if first, err := near.r.Peek(2); err != nil || first[0] != record || first[1] != version {
		return nil, &refusal{label: refusedRequest, text: "this is not TLS"}
	}
	if err := near.SetReadDeadline(time.Time{}); err != nil {
		return nil, &refusal{label: refusedRequest, text: err.Error()}
	}
	name := s.table.nodeAt(port)
	node, known := s.dialer.nodes.Node(ctx, name)
	if !known || !node.Edge {
		return nil, &refusal{label: refusedDial, text: fmt.Sprintf("port %d is no node's", port)}
	}
	return s.dialer.dialPort(ctx, by, name, node, config.EdgeKubeletPort)
}

// admitConn counts a connection to a port until leave, unless its source is not allowed or there are too many. An error is a *refusal.
func (s *portServer) admitConn(by string, port uint16) (leave func(), err error) {
	from, err := netip.ParseAddrPort(by)
	if err != nil || !s.mayConnect(from.Addr().Unmap()) {
		return nil, &refusal{label: refusedForbidden, text: "not from there"}
	}
	leave, ok := s.connLimit.acquire(from.Addr().Unmap(), port)
	if !ok {
		return nil, &refusal{label: refusedTooMany, text: "too many connections to this port"}
	}
	return leave, nil
}

func (s *portServer) mayConnect(from netip.Addr) bool {
	return slices.ContainsFunc(s.cfg.Direct.From, func(network netip.Prefix) bool { return network.Contains(from) })
}

// sendReason answers in place of a kubelet that is not reached. Of a kubelet's answers, kube-apiserver shows the text
// of a 502 to its user.
func (s *portServer) sendReason(ctx context.Context, near net.Conn, why error) {
	if s.cfg.Direct.CertFile == "" {
		return
	}
	cert, err := tls.LoadX509KeyPair(s.cfg.Direct.CertFile, s.cfg.Direct.KeyFile)
	if err != nil {
		s.log.Error("cannot answer why a node is not reached", zap.Error(err))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reasonTimeout)
	defer cancel()
	conn := tls.Server(near, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}})
	if err := conn.SetDeadline(time.Now().Add(reasonTimeout)); err != nil {
		return
	}
	if err := conn.HandshakeContext(ctx); err != nil {
		s.log.Debug("caller not told why", zap.Error(err))
		return
	}
	if _, err := http.ReadRequest(bufio.NewReader(io.LimitReader(conn, maxHeader))); err != nil {
		return
	}
	text := reasonPhrase(why.Error())
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(text), text)
	_ = conn.Close() // or its user has gone
}
