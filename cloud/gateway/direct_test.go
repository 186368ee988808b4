package gateway_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/cloud/gateway"
	"github.com/frond-edge/frond/internal/devcluster/pki"
	"github.com/frond-edge/frond/streams/tunnel"
	"github.com/frond-edge/frond/test/kit"
)

// portOf returns a free port.
func portOf(t *testing.T) uint16 {
	t.Helper()
	return netip.MustParseAddrPort(freeAddress(t)).Port()
}

func loopbackNetworks() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }

// newDirectFixture creates a gateway with one edge node at its port, whose kubelet has the gateway's name.
func newDirectFixture(t *testing.T, change func(*gateway.Config)) (w *gatewayFixture, g *gateway.Gateway, port uint16, caller *tls.Config) {
	t.Helper()
	cfg, ca, caller := newTLSFiles(t)
	cfg.ReusePort = true
	cfg.Direct = gateway.Direct{Enabled: true, Listen: "127.0.0.1", From: loopbackNetworks(), CertFile: cfg.CertFile, KeyFile: cfg.KeyFile}
	if change != nil {
		change(&cfg)
	}
	pair := issuePair(t, ca, pki.Subject{Name: "kubelet", Hosts: []string{"127.0.0.1"}})
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{loadPair(t, pair)}, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(out, "from the kubelet")
	})}
	var group errgroup.Group
	group.Go(func() error { return server.Serve(l) })
	t.Cleanup(func() {
		_ = server.Close()
		_ = group.Wait() // http.ErrServerClosed
	})
	w = &gatewayFixture{nodes: map[string]gateway.Node{"edge-1": {UID: "one", Edge: true}}, servers: map[string]string{"edge-1:10250": l.Addr().String()}}
	g, port = startGateway(t, cfg, w, nil), portOf(t)
	return w, g, port, caller
}

// requestPort calls a port as kube-apiserver calls a kubelet, until the port is open.
func requestPort(t *testing.T, port uint16, config *tls.Config) (code int, body string, err error) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: config.Clone(), DisableKeepAlives: true}
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://127.0.0.1:"+strconv.Itoa(int(port))+"/containerLogs", nil)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = reply.Body.Close() }()
	data, err := io.ReadAll(reply.Body)
	return reply.StatusCode, string(data), err
}

// waitPort waits until a port is open, or closed.
func waitPort(t *testing.T, port uint16, want bool) {
	t.Helper()
	kit.Eventually(t, fmt.Sprintf("port %d open: %t", port, want), func() bool {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", "127.0.0.1:"+strconv.Itoa(int(port)))
		if err == nil {
			_ = conn.Close() // only probed
		}
		return (err == nil) == want
	})
}

func TestDirect_NodeReachedAtItsPort(t *testing.T) {
	w, g, port, caller := newDirectFixture(t, nil)
	g.SetPorts(map[uint16]string{port: "edge-1"})
	waitPort(t, port, true)
	if code, body, err := requestPort(t, port, caller); err != nil || code != http.StatusOK || body != "from the kubelet" {
		t.Fatalf("%d %q %v", code, body, err)
	}
	// A refusal is sent in place of the kubelet's answer, with the same text as on the other paths.
	w.failDials(tunnel.ErrOffline)
	w.setNode("edge-1", gateway.Node{UID: "one", Edge: true, Offline: true, Since: time.Unix(1700000000, 0)})
	began := time.Now()
	if code, body, err := requestPort(t, port, caller); err != nil || code != http.StatusBadGateway || !strings.Contains(body, "node edge-1 is offline since 2023-11-14T22:13:20Z") {
		t.Errorf("%d %q %v", code, body, err)
	}
	t.Logf("told after %s", time.Since(began))
	w.removeNode("edge-1")
	if code, body, err := requestPort(t, port, caller); err != nil || code != http.StatusBadGateway || !strings.Contains(body, fmt.Sprintf("port %d is no node's", port)) {
		t.Errorf("%d %q %v", code, body, err)
	}
	// A port that is no longer assigned is closed; the next one is opened.
	next := portOf(t)
	g.SetPorts(map[uint16]string{next: "edge-1"})
	waitPort(t, next, true)
	waitPort(t, port, false)
}

// TestDirect_PortInTheNodeIsTheKubelets: a caller that uses the Node's status connects to the port that the cloud has put there.
func TestDirect_PortInTheNodeIsTheKubelets(t *testing.T) {
	w, _, _ := newSocketFixture(t)
	socket := socketPath(t)
	g := startGateway(t, gateway.Config{Socket: socket}, w, nil)
	g.SetPorts(map[uint16]string{30001: "edge-1", 30002: "edge-2"})
	r, refused := requestConnect(t, dialUnix(t, socket), "edge-1:30001")
	if refused != "" || r == nil {
		t.Fatal(refused)
	}
	if _, refused := requestConnect(t, dialUnix(t, socket), "edge-1:30002"); !strings.Contains(refused, "nobody listens") {
		t.Errorf("another's port: %q", refused)
	}
}

func TestDirect_OtherTrafficOpensNoTunnel(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*gateway.Config)
		say    string
	}{
		"no TLS":         {nil, "GET / HTTP/1.1\r\n\r\n"},
		"from nowhere":   {func(c *gateway.Config) { c.Direct.From = nil }, "\x16\x03\x01"},
		"not from there": {func(c *gateway.Config) { c.Direct.From = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }, "\x16\x03\x01"},
	} {
		t.Run(name, func(t *testing.T) {
			w, g, port, _ := newDirectFixture(t, tt.change)
			w.duringDial = func() { t.Error("a tunnel was asked for") }
			g.SetPorts(map[uint16]string{port: "edge-1"})
			waitPort(t, port, true)
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", "127.0.0.1:"+strconv.Itoa(int(port)))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			_, _ = io.WriteString(conn, tt.say) // it may be closed already
			if data, err := io.ReadAll(conn); len(data) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("answer %q, %v", data, err)
			}
		})
	}
}

func TestDirect_StreamsEndWithTheirNode(t *testing.T) {
	_, g, port, caller := newDirectFixture(t, nil)
	g.SetPorts(map[uint16]string{port: "edge-1"})
	waitPort(t, port, true)
	conn, err := (&tls.Dialer{Config: caller}).DialContext(t.Context(), "tcp", "127.0.0.1:"+strconv.Itoa(int(port)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	g.OnNodeChanged("edge-1", gateway.Node{UID: "one", Edge: true}, nil)
	if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the stream goes on without its node")
	}
}

func TestDirect_StreamsEndWithTheGateway(t *testing.T) {
	w := &gatewayFixture{nodes: map[string]gateway.Node{"edge-1": {UID: "one", Edge: true}}, servers: map[string]string{"edge-1:10250": startEcho(t, "")}}
	g, stop := startStoppable(t, gateway.Config{Direct: gateway.Direct{Enabled: true, Listen: "127.0.0.1", From: loopbackNetworks()}}, w, nil)
	port := portOf(t)
	g.SetPorts(map[uint16]string{port: "edge-1"})
	waitPort(t, port, true)
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", "127.0.0.1:"+strconv.Itoa(int(port)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	checkEcho(t, conn, conn, "\x16\x03 as a handshake begins")
	stop()
	if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the stream goes on without the gateway")
	}
	waitPort(t, port, false)
}
