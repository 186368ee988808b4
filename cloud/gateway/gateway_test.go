package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/cloud/gateway"
	"github.com/frond-edge/frond/streams/tunnel"
	"github.com/frond-edge/frond/streams/tunnel/protocol"
	"github.com/frond-edge/frond/test/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(kit.AwaitGoroutines(m)) }

// gatewayFixture is the environment of a gateway: the Nodes that Kubernetes knows, and servers on them.
type gatewayFixture struct {
	duringDial func() // called by each dial; nil: nothing
	mu         sync.Mutex
	// Guarded by mu.
	nodes   map[string]gateway.Node
	servers map[string]string // node:port or node/address:port to an address
	// claims are of each address, services of each ClusterIP and port.
	claims     map[string][]gateway.Claim
	services   map[string][]gateway.Endpoint
	failure    error      // of each dial
	beforeDial func()     // called by each dial, before it fails; nil: nothing
	openConns  []net.Conn // all that were dialled
}

func (w *gatewayFixture) Node(_ context.Context, name string) (gateway.Node, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, ok := w.nodes[name]
	return n, ok
}

func (w *gatewayFixture) ByTunnelAddress(_ context.Context, address netip.Addr) (string, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, n := range w.nodes {
		if n.Edge && wire.TunnelAddress(name) == address {
			return name, true
		}
	}
	return "", false
}

func (w *gatewayFixture) setNode(name string, n gateway.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes[name] = n
}

func (w *gatewayFixture) failDials(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failure = err
}

func (w *gatewayFixture) setBeforeDial(call func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.beforeDial = call
}

func (w *gatewayFixture) removeNode(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.nodes, name)
}

func (w *gatewayFixture) dialServer(ctx context.Context, to tunnel.Addr) (net.Conn, error) {
	w.mu.Lock()
	address, failure, asked := w.servers[to.String()], w.failure, w.beforeDial
	w.mu.Unlock()
	if asked != nil {
		asked()
	}
	if failure != nil {
		return nil, failure
	}
	if w.duringDial != nil {
		w.duringDial()
	}
	if address == "" {
		return nil, &tunnel.RefusedError{Node: to.Node, Address: to.Address, Port: to.Port, Code: protocol.CodePort, Text: "nobody listens"}
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err == nil {
		w.mu.Lock()
		w.openConns = append(w.openConns, conn)
		w.mu.Unlock()
	}
	return conn, err
}

func (w *gatewayFixture) Heard(string) {}

func (w *gatewayFixture) Drop(_, _ string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, conn := range w.openConns {
		_ = conn.Close() // some are closed
	}
	return len(w.openConns)
}

// startEcho starts a server that echoes its input until the sender has ended; it sends greeting first unless it is empty.
func startEcho(t *testing.T, greeting string) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var g errgroup.Group
	g.Go(func() error {
		for {
			conn, err := l.Accept()
			if err != nil {
				return nil //nolint:nilerr // the test has ended
			}
			g.Go(func() error {
				_, _ = io.WriteString(conn, greeting)
				_, _ = io.Copy(conn, conn)
				return conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		_ = g.Wait() // echoes end with their callers
	})
	return l.Addr().String()
}

// startGateway runs a gateway until the test ends.
func startGateway(t *testing.T, cfg gateway.Config, w *gatewayFixture, judge gateway.Authorizer) *gateway.Gateway {
	t.Helper()
	g, _ := startStoppable(t, cfg, w, judge)
	return g
}

// startStoppable is startGateway with a function to stop it earlier.
func startStoppable(t *testing.T, cfg gateway.Config, w *gatewayFixture, judge gateway.Authorizer) (*gateway.Gateway, func()) {
	t.Helper()
	g, err := gateway.New(cfg, w, w, w, judge, nil, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var group errgroup.Group
	group.Go(func() error { return g.Start(ctx) })
	stop := sync.OnceFunc(func() {
		cancel()
		if err := group.Wait(); err != nil {
			t.Errorf("gateway: %v", err)
		}
	})
	t.Cleanup(stop)
	kit.Receive(t, "the gateway is ready", g.Ready())
	return g, stop
}

// socketPath returns a path for a socket: it must be short.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gw") //nolint:usetesting // that one's path is long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // best effort in the temporary folder
	return filepath.Join(dir, "s")
}

// newSocketFixture creates a gateway on a unix socket with one edge node that echoes on port 10250.
func newSocketFixture(t *testing.T) (*gatewayFixture, *gateway.Gateway, string) {
	t.Helper()
	w := &gatewayFixture{
		nodes:   map[string]gateway.Node{"edge-1": {UID: "one", Edge: true, KubeletPort: 10250}},
		servers: map[string]string{"edge-1:10250": startEcho(t, "")},
	}
	socket := socketPath(t)
	return w, startGateway(t, gateway.Config{Socket: socket}, w, nil), socket
}

// requestConnect requests a target as kube-apiserver does and returns the connection after a 200, or the status line of the refusal.
func requestConnect(t *testing.T, conn net.Conn, target string) (*bufio.Reader, string) {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", target); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	reply, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return r, reply.Status
	}
	return r, ""
}

func dialUnix(t *testing.T, socket string) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // mostly closed already
	return conn
}

func checkEcho(t *testing.T, conn net.Conn, r io.Reader, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != text {
		t.Fatalf("echo of %q: %q, %v", text, got, err)
	}
}

// A node that has just become Ready may lack its kubelet's serving certificate: it is retried until it has one.
func TestGateway_WaitsForANodeThatIsNotReadyYet(t *testing.T) {
	unready := &tunnel.RefusedError{Node: "edge-1", Port: 10250, Code: protocol.CodeUnready, Text: "no certificate yet"}
	w, _, socket := newSocketFixture(t)
	asked := make(chan struct{}, 100) // more than the dials of one call
	w.failDials(unready)
	w.setBeforeDial(func() { asked <- struct{}{} })
	var g errgroup.Group
	g.Go(func() error {
		<-asked
		<-asked
		w.failDials(nil)
		return nil
	})
	conn := dialUnix(t, socket)
	r, refused := requestConnect(t, conn, "edge-1:10250")
	if refused != "" {
		t.Fatal(refused)
	}
	checkEcho(t, conn, r, "to the node")
	_ = conn.Close() // said
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	// A node that stays unready is given up, with its last answer as the reason.
	limited := socketPath(t)
	startGateway(t, gateway.Config{Socket: limited, UnreadyTimeout: time.Millisecond}, w, nil)
	w.failDials(unready)
	if _, refused := requestConnect(t, dialUnix(t, limited), "edge-1:10250"); !strings.Contains(refused, "502") || !strings.Contains(refused, "no certificate yet (unready)") {
		t.Errorf("the refusal reads %q", refused)
	}
}

func TestGateway_DialsNodesByNameAndOthersByAddress(t *testing.T) {
	w, _, socket := newSocketFixture(t)
	conn := dialUnix(t, socket)
	r, refused := requestConnect(t, conn, "edge-1:10250")
	if refused != "" {
		t.Fatal(refused)
	}
	checkEcho(t, conn, r, "to the node")
	if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}

	conn = dialUnix(t, socket)
	if r, refused = requestConnect(t, conn, net.JoinHostPort(wire.TunnelAddress("edge-1").String(), "10250")); refused != "" {
		t.Fatal(refused)
	}
	checkEcho(t, conn, r, "to the node by its address in the tunnel")

	outside := startEcho(t, "")
	conn = dialUnix(t, socket)
	if r, refused = requestConnect(t, conn, outside); refused != "" {
		t.Fatal(refused)
	}
	checkEcho(t, conn, r, "to a webhook")

	host, port, _ := net.SplitHostPort(outside)
	w.setNode("cloud-1", gateway.Node{UID: "two", Address: host}) // a name that is not in DNS
	conn = dialUnix(t, socket)
	if r, refused = requestConnect(t, conn, net.JoinHostPort("cloud-1", port)); refused != "" {
		t.Fatal(refused)
	}
	checkEcho(t, conn, r, "to a node in the cloud")
}

func TestGateway_RefusalNamesTheReason(t *testing.T) {
	w, g, socket := newSocketFixture(t)
	refused := func(target string) string {
		t.Helper()
		conn := dialUnix(t, socket)
		_, why := requestConnect(t, conn, target)
		return why
	}
	holds := func(why string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(why, part) {
				t.Errorf("%q lacks %q", why, part)
			}
		}
	}
	holds(refused("edge-1:22"), "502", "edge-1", "22", "nobody listens")
	w.failDials(tunnel.ErrOffline)
	holds(refused("edge-1:10250"), "503", "node edge-1 does not answer")
	g.OnHeartbeat("edge-1")
	holds(refused("edge-1:10250"), "503", "last heartbeat came at 20")
	since := time.Now().Add(time.Hour).Truncate(time.Second)
	w.setNode("edge-1", gateway.Node{UID: "one", Edge: true, Offline: true, Since: since})
	holds(refused("edge-1:10250"), "503", "node edge-1 is offline since "+since.UTC().Format(time.RFC3339))
	w.failDials(errors.New("strange\r\nX-Evil: 1\r\n\r\n\x00"))
	holds(refused("edge-1:10250"), "503", "strange  X-Evil: 1")
	holds(refused(net.JoinHostPort(wire.TunnelAddress("edge-7").String(), "10250")), "502", "no edge node has the address fd66:726f:6e64:")
	holds(refused("edge-1"), "400")
	holds(refused("edge-1:99999"), "400")
	holds(refused("127.0.0.1:1"), "502", "refused")
	conn := dialUnix(t, socket)
	if _, err := io.WriteString(conn, "GET http://edge-1:10250/pods HTTP/1.1\r\nHost: edge-1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	reply, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = reply.Body.Close()
	if reply.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: %s", reply.Status)
	}
}

func TestGateway_StreamsEndWithTheirNode(t *testing.T) {
	online, offline := gateway.Node{UID: "one", Edge: true}, gateway.Node{UID: "one", Edge: true, Offline: true}
	for name, tt := range map[string]struct {
		was  gateway.Node
		is   *gateway.Node
		ends bool
	}{
		"nothing new":   {online, &online, false},
		"still offline": {offline, &offline, false}, // its tunnel came back before its heartbeat
		"back":          {offline, &online, false},
		"now offline":   {online, &offline, true},
		"deleted":       {online, nil, true},
		"created again": {online, &gateway.Node{UID: "two", Edge: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			_, g, socket := newSocketFixture(t)
			conn := dialUnix(t, socket)
			r, refused := requestConnect(t, conn, "edge-1:10250")
			if refused != "" {
				t.Fatal(refused)
			}
			checkEcho(t, conn, r, "before")
			g.OnNodeChanged("edge-1", tt.was, tt.is)
			if !tt.ends {
				checkEcho(t, conn, r, "after")
				return
			}
			if _, err := r.ReadByte(); err == nil {
				t.Error("the stream goes on")
			} else if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the stream does not end")
			}
		})
	}
}

// TestGateway_NoStreamToDeletedNode deletes the node between the look-up and the end of the dial.
func TestGateway_NoStreamToDeletedNode(t *testing.T) {
	w, _, socket := newSocketFixture(t)
	w.duringDial = func() { w.removeNode("edge-1") }
	if _, refused := requestConnect(t, dialUnix(t, socket), "edge-1:10250"); !strings.Contains(refused, "node edge-1 is deleted") {
		t.Errorf("answer %q", refused)
	}
}

func TestGateway_StreamsEndWithTheGateway(t *testing.T) {
	w, _, _ := newSocketFixture(t)
	socket := socketPath(t)
	_, stop := startStoppable(t, gateway.Config{Socket: socket}, w, nil)
	outside := startEcho(t, "")
	for _, target := range []string{"edge-1:10250", outside} {
		conn := dialUnix(t, socket)
		r, refused := requestConnect(t, conn, target)
		if refused != "" {
			t.Fatal(refused)
		}
		checkEcho(t, conn, r, "hello")
		defer func() {
			if _, err := r.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the stream to %s: %v", target, err)
			}
		}()
	}
	stop()
}

func TestGateway_LastOneTakesTheSocket(t *testing.T) {
	w, _, _ := newSocketFixture(t)
	socket := socketPath(t)
	_, stop := startStoppable(t, gateway.Config{Socket: socket}, w, nil)
	startGateway(t, gateway.Config{Socket: socket}, w, nil)
	stop() // which leaves the other gateway's socket in place
	conn := dialUnix(t, socket)
	r, refused := requestConnect(t, conn, "edge-1:10250")
	if refused != "" {
		t.Fatal(refused)
	}
	checkEcho(t, conn, r, "hello")
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}
