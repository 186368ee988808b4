package gateway_test

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/cloud/gateway"
	"github.com/frond-edge/frond/internal/devcluster/pki"
)

// newTLSFiles creates the files of a TLS listener, and returns the configuration of a caller with a certificate.
func newTLSFiles(t *testing.T) (cfg gateway.Config, ca *pki.Authority, caller *tls.Config) {
	t.Helper()
	ca, err := pki.NewAuthority(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	serving := issuePair(t, ca, pki.Subject{Name: "gateway", Hosts: []string{"127.0.0.1"}})
	own := issuePair(t, ca, pki.Subject{Name: "kube-apiserver"})
	cfg = gateway.Config{
		CertFile: serving.Cert, KeyFile: serving.Key, ClientCAFile: ca.Cert,
		KubeletCAFile: ca.Cert, KubeletCertFile: own.Cert, KubeletKeyFile: own.Key,
	}
	return cfg, ca, &tls.Config{RootCAs: loadPool(t, ca), Certificates: []tls.Certificate{loadPair(t, own)}, MinVersion: tls.VersionTLS12}
}

func issuePair(t *testing.T, ca *pki.Authority, s pki.Subject) pki.Pair {
	t.Helper()
	pair, err := ca.Issue(strings.ReplaceAll(s.Name, ":", "-"), s)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func loadPair(t *testing.T, pair pki.Pair) tls.Certificate {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func loadPool(t *testing.T, ca *pki.Authority) *x509.CertPool {
	t.Helper()
	data, err := os.ReadFile(ca.Cert)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(data)
	return pool
}

// freeAddress returns a loopback address without a listener.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// dialProxied dials a target through CONNECT over TLS.
func dialProxied(ctx context.Context, address string, config *tls.Config) (*tls.Conn, error) {
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	secure := conn.(*tls.Conn)
	if err := secure.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return nil, err
	}
	// With TLS 1.3 a refused client certificate shows at the first read.
	if _, err := fmt.Fprint(secure, "CONNECT edge-1:10250 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); err != nil {
		return secure, err
	}
	first := make([]byte, len("HTTP/1.1 200 Connection established\r\n\r\n"))
	if _, err := io.ReadFull(secure, first); err != nil {
		return secure, err
	}
	if !strings.HasPrefix(string(first), "HTTP/1.1 200") {
		return secure, fmt.Errorf("answer %q", first)
	}
	return secure, nil
}

func TestGateway_AddressNeedsCertificate(t *testing.T) {
	cfg, _, caller := newTLSFiles(t)
	cfg.Address, cfg.ReusePort = freeAddress(t), true
	w := &gatewayFixture{
		nodes:   map[string]gateway.Node{"edge-1": {UID: "one", Edge: true}},
		servers: map[string]string{"edge-1:10250": startEcho(t, "")},
	}
	startGateway(t, cfg, w, nil)
	startGateway(t, cfg, w, nil)
	for range 8 {
		conn, err := dialProxied(t.Context(), cfg.Address, caller)
		if err != nil {
			t.Fatal(err)
		}
		checkEcho(t, conn, conn, "hello")
		_ = conn.Close() // everything was sent
	}
	_, other, strange := newTLSFiles(t)
	for name, change := range map[string]func(*tls.Config){
		"no certificate":       func(c *tls.Config) { c.Certificates = nil },
		"of another CA":        func(c *tls.Config) { c.Certificates = strange.Certificates },
		"an old TLS":           func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 },
		"wants another server": func(c *tls.Config) { c.RootCAs = loadPool(t, other) },
	} {
		t.Run(name, func(t *testing.T) {
			config := caller.Clone()
			change(config)
			conn, err := dialProxied(t.Context(), cfg.Address, config)
			if conn != nil {
				_ = conn.Close() // refused or not
			}
			if err == nil {
				t.Error("served")
			}
		})
	}
}

// startKubelet starts a server with a certificate for a name, which answers with the request that it received.
func startKubelet(t *testing.T, ca *pki.Authority, name string, clients *x509.CertPool) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the node saw what the caller showed")
		}
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Set-Cookie", "evil=1")
		z := gzip.NewWriter(w)
		_, _ = fmt.Fprintf(z, "from %s for %s", name, r.TLS.PeerCertificates[0].Subject.CommonName)
		_ = z.Close() // a buffer
	})
	mux.HandleFunc("/stats/summary", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://example.com/", http.StatusFound)
	})
	server := httptest.NewUnstartedServer(mux)
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{loadPair(t, issuePair(t, ca, pki.Subject{Name: name, Hosts: []string{name}}))},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: clients, MinVersion: tls.VersionTLS12,
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// testAuthorizer accepts one token, which may get metrics but no stats of edge-3.
func testAuthorizer(r *http.Request, node, subresource string) (string, error) {
	switch {
	case r.Header.Get("Authorization") != "Bearer good":
		return "", gateway.ErrUnknownUser
	case node == "edge-3" && subresource == "stats":
		return "prometheus", gateway.ErrForbidden
	}
	return "prometheus", nil
}

func TestScrape_RightNodeForTheRightUser(t *testing.T) {
	cfg, ca, caller := newTLSFiles(t)
	cfg.ScrapeAddress = freeAddress(t)
	pool := loadPool(t, ca)
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "edgecore") }))
	t.Cleanup(plain.Close)
	edge := gateway.Node{Edge: true, KubeletPort: 10250}
	w := &gatewayFixture{
		nodes: map[string]gateway.Node{"edge-1": edge, "edge-2": edge, "edge-3": edge, "liar": edge, "cloud-1": {Address: "127.0.0.1", KubeletPort: 1}},
		servers: map[string]string{
			"edge-1:10250": startKubelet(t, ca, "edge-1", pool), "edge-1:10281": strings.TrimPrefix(plain.URL, "http://"),
			"edge-3:10250": startKubelet(t, ca, "edge-3", pool), "liar:10250": startKubelet(t, ca, "not-liar", pool),
		},
	}
	startGateway(t, cfg, w, testAuthorizer)
	transport := &http.Transport{TLSClientConfig: caller} // it requests gzip and unpacks it
	t.Cleanup(transport.CloseIdleConnections)
	get := func(path, token string) (int, string, http.Header) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+cfg.ScrapeAddress+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		reply, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = reply.Body.Close() }()
		body, err := io.ReadAll(reply.Body)
		if err != nil {
			t.Fatal(err)
		}
		return reply.StatusCode, string(body), reply.Header
	}
	for _, node := range []string{"edge-1", "edge-3", "edge-1"} {
		code, body, header := get("/nodes/"+node+"/kubelet/metrics", "good")
		if code != http.StatusOK || body != "from "+node+" for kube-apiserver" || header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %d %q %v", node, code, body, header)
		}
	}
	if code, body, _ := get("/nodes/edge-1/edgecore/metrics", "good"); code != http.StatusOK || body != "edgecore" {
		t.Errorf("edgecore: %d %q", code, body)
	}
	for name, tt := range map[string]struct {
		path, token string
		code        int
	}{
		"no user":               {"/nodes/edge-1/kubelet/metrics", "bad", http.StatusUnauthorized},
		"no right":              {"/nodes/edge-3/kubelet/stats/summary", "good", http.StatusForbidden},
		"a redirect":            {"/nodes/edge-1/kubelet/stats/summary", "good", http.StatusBadGateway},
		"another's certificate": {"/nodes/liar/kubelet/metrics", "good", http.StatusBadGateway},
		"no server":             {"/nodes/edge-2/kubelet/metrics", "good", http.StatusBadGateway},
		"no edge node":          {"/nodes/cloud-1/kubelet/metrics", "good", http.StatusNotFound},
		"no node":               {"/nodes/edge-9/kubelet/metrics", "good", http.StatusNotFound},
		"a port of one's own":   {"/nodes/edge-1/22/metrics", "good", http.StatusNotFound},
		"exec":                  {"/nodes/edge-1/kubelet/exec/default/a/b", "good", http.StatusNotFound},
		"dots":                  {"/nodes/edge-1/kubelet/metrics/..%2f..%2fpods", "good", http.StatusNotFound},
		"a node with dots":      {"/nodes/..%2fedge-1/kubelet/metrics", "good", http.StatusNotFound},
		"a node with a port":    {"/nodes/edge-1:22%2f/kubelet/metrics", "good", http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			if code, body, _ := get(tt.path, tt.token); code != tt.code {
				t.Errorf("%d %q, want %d", code, body, tt.code)
			}
		})
	}
}
