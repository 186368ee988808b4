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
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/config"
)

// Direct is how kube-apiservers that know no proxy reach nodes: a port for each node (Give), behind which is its kubelet. The
// zero value is off.
type Direct struct {
	// On opens the ports that are given.
	On bool
	// Listen is the IP address; "" means all.
	Listen string
	// From are the networks that may connect; nil means none. Whoever may still has to convince the kubelet.
	From []netip.Prefix
	// CertFile and KeyFile serve the reason why a node is not reached; "": nobody is told.
	CertFile, KeyFile string
}

const (
	// listenAgain is when a port that could not be opened is tried again.
	listenAgain = 5 * time.Second
	// acceptAgain is when the next connection is taken after one could not be.
	acceptAgain = 100 * time.Millisecond
	// tellTimeout bounds telling a caller why; most of the 3 s of a user have passed.
	tellTimeout = 2 * time.Second
)

// Give tells which node has which port. It does not block.
func (g *Gateway) Give(nodes map[uint16]string) {
	g.mu.Lock()
	g.given = nodes
	g.mu.Unlock()
	select {
	case g.regiven <- struct{}{}:
	default:
	}
}

// givenTo tells whose a port is.
func (g *Gateway) givenTo(port uint16) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.given[port]
}

// direct listens on the ports that are given, until ctx ends; then it ends all streams.
func (g *Gateway) direct(ctx context.Context) error {
	if !g.cfg.Direct.On {
		<-ctx.Done() // a gateway that has no address at all stays, too
		return nil
	}
	open := map[uint16]net.Listener{}
	var conns errgroup.Group
	defer func() {
		for _, l := range open {
			_ = l.Close() // nobody listens any more
		}
		_ = conns.Wait() // they return nil
	}()
	for {
		again := g.relisten(ctx, open, &conns)
		timer := time.NewTimer(listenAgain)
		if !again {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-g.regiven:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// relisten makes the open ports those that are given, and tells whether some could not be opened.
func (g *Gateway) relisten(ctx context.Context, open map[uint16]net.Listener, conns *errgroup.Group) (again bool) {
	g.mu.Lock()
	given := g.given
	g.mu.Unlock()
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
		l, err := g.listenTCP(ctx, net.JoinHostPort(g.cfg.Direct.Listen, strconv.Itoa(int(port))))
		if err != nil {
			g.log.Error("port of a node not opened", zap.String("node", node), zap.Uint16("port", port), zap.Error(err))
			again = true
			continue
		}
		open[port] = l
		conns.Go(func() error {
			g.accept(ctx, l, port, conns)
			return nil
		})
	}
	g.metrics.ports.Set(float64(len(open)))
	return again
}

// accept serves what comes to a port until it is closed.
func (g *Gateway) accept(ctx context.Context, l net.Listener, port uint16, conns *errgroup.Group) {
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			conns.Go(func() error {
				g.serveDirect(ctx, conn, port)
				return nil
			})
			continue
		case errors.Is(err, net.ErrClosed):
			return
		}
		g.log.Error("connection to a port of a node not taken", zap.Uint16("port", port), zap.Error(err)) // too many open files, for one
		select {
		case <-ctx.Done():
			return
		case <-time.After(acceptAgain):
		}
	}
}

// hello is a connection of which the first bytes have been looked at.
type hello struct {
	net.Conn
	r *bufio.Reader
}

func (h hello) Read(p []byte) (int, error) { return h.r.Read(p) }

func (h hello) CloseWrite() error { return h.Conn.(*net.TCPConn).CloseWrite() }

// serveDirect joins a connection to the kubelet of the node that has the port.
func (g *Gateway) serveDirect(ctx context.Context, raw net.Conn, port uint16) {
	defer context.AfterFunc(ctx, func() { _ = raw.Close() })() // given up
	near, by, target := hello{raw, bufio.NewReader(raw)}, raw.RemoteAddr().String(), "port "+strconv.Itoa(int(port))
	leave, err := g.admit(by, port)
	if err != nil {
		g.refuse(by, target, err)
		_ = raw.Close() // without a word, which would cost a handshake
		return
	}
	defer leave()
	far, err := g.reachDirect(ctx, near, by, port)
	if err != nil {
		g.refuse(by, target, err)
		if why, ok := err.(*refusal); ok && why.label != refusedRequest { //nolint:errorlint // made by the line above
			g.tellWhy(ctx, near, why)
		}
		_ = raw.Close() // nothing is left to say
		return
	}
	join(ctx, near, far)
}

// reachDirect opens a stream to the node that has a port. What does not begin as TLS does is not for a kubelet, and costs
// its link nothing. An error is a *refusal.
func (g *Gateway) reachDirect(ctx context.Context, near hello, by string, port uint16) (net.Conn, error) {
	if err := near.SetReadDeadline(time.Now().Add(headerTimeout)); err != nil {
		return nil, &refusal{label: refusedRequest, text: err.Error()}
	}
	const record, version = 0x16, 0x03 // of a handshake
	if first, err := near.r.Peek(2); err != nil || first[0] != record || first[1] != version {
		return nil, &refusal{label: refusedRequest, text: "this is not TLS"}
	}
	if err := near.SetReadDeadline(time.Time{}); err != nil {
		return nil, &refusal{label: refusedRequest, text: err.Error()}
	}
	name := g.givenTo(port)
	node, known := g.nodes.Node(ctx, name)
	if !known || !node.Edge {
		return nil, &refusal{label: refusedDial, text: fmt.Sprintf("port %d is no node's", port)}
	}
	return g.open(ctx, by, name, node, config.EdgeKubeletPort)
}

// admit counts a connection to a port until leave, unless it may not come or too many are there. An error is a *refusal.
func (g *Gateway) admit(by string, port uint16) (leave func(), err error) {
	from, err := netip.ParseAddrPort(by)
	if err != nil || !g.mayConnect(from.Addr().Unmap()) {
		return nil, &refusal{label: refusedForbidden, text: "not from there"}
	}
	leave, ok := g.crowd.enter(from.Addr().Unmap(), port)
	if !ok {
		return nil, &refusal{label: refusedTooMany, text: "too many connections to this port"}
	}
	return leave, nil
}

func (g *Gateway) mayConnect(from netip.Addr) bool {
	return slices.ContainsFunc(g.cfg.Direct.From, func(network netip.Prefix) bool { return network.Contains(from) })
}

// tellWhy answers in place of a kubelet that is not reached. Of what kubelets answer, kube-apiserver shows the text of 502 to
// its user.
func (g *Gateway) tellWhy(ctx context.Context, near net.Conn, why error) {
	if g.cfg.Direct.CertFile == "" {
		return
	}
	cert, err := tls.LoadX509KeyPair(g.cfg.Direct.CertFile, g.cfg.Direct.KeyFile)
	if err != nil {
		g.log.Error("cannot answer why a node is not reached", zap.Error(err))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	conn := tls.Server(near, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}})
	if err := conn.SetDeadline(time.Now().Add(tellTimeout)); err != nil {
		return
	}
	if err := conn.HandshakeContext(ctx); err != nil {
		g.log.Debug("caller not told why", zap.Error(err))
		return
	}
	if _, err := http.ReadRequest(bufio.NewReader(io.LimitReader(conn, maxHeader))); err != nil {
		return
	}
	text := phrase(why.Error())
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(text), text)
	_ = conn.Close() // or its user has gone
}
