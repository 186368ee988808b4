package pki_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/frond-edge/frond/internal/devcluster/pki"
)

func TestAuthority_IssuedPairsVerify(t *testing.T) {
	dir := t.TempDir()
	ca, err := pki.NewAuthority(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	served, err := ca.Issue("server", pki.Subject{Name: "server", Hosts: []string{"127.0.0.1", "localhost"}})
	if err != nil {
		t.Fatal(err)
	}
	known, err := ca.Issue("client", pki.Subject{Name: "alice", Groups: []string{"people"}})
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := pki.NewAuthority(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	unknown, err := stranger.Issue("client", pki.Subject{Name: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pem, err := os.ReadFile(ca.Cert)
	if err != nil || !pool.AppendCertsFromPEM(pem) {
		t.Fatalf("read authority: %v", err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		subject := r.TLS.PeerCertificates[0].Subject
		_, _ = w.Write([]byte(subject.CommonName + " " + subject.Organization[0]))
	}))
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{loadPair(t, served)}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
	server.StartTLS()
	defer server.Close()
	for pair, accepted := range map[pki.Pair]bool{known: true, unknown: false} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{loadPair(t, pair)}}}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(request)
		if err == nil {
			_ = response.Body.Close()
		}
		if (err == nil) != accepted {
			t.Errorf("%s: error %v, want accepted %t", pair.Cert, err, accepted)
		}
		transport.CloseIdleConnections()
	}
	// A client's certificate must not be valid for a server.
	cert, err := x509.ParseCertificate(loadPair(t, known).Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: pool}); err == nil {
		t.Error("a client's certificate passes for a server's")
	}
}

func TestAuthority_ReusesExistingPairs(t *testing.T) {
	dir := t.TempDir()
	produce := func() string {
		ca, err := pki.NewAuthority(dir, "ca")
		if err != nil {
			t.Fatal(err)
		}
		pair, err := ca.Issue("client", pki.Subject{Name: "alice"})
		if err != nil {
			t.Fatal(err)
		}
		key, _, err := pki.SigningKeys(dir, "sa")
		if err != nil {
			t.Fatal(err)
		}
		var all string
		for _, path := range []string{ca.Cert, ca.Key, pair.Cert, pair.Key, key} {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			all += string(data)
		}
		info, err := os.Stat(pair.Key)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("key file: %v %v", info.Mode(), err)
		}
		return all
	}
	if first := produce(); first != produce() {
		t.Error("a second call made new files")
	}
}

func loadPair(t *testing.T, p pki.Pair) tls.Certificate {
	t.Helper()
	c, err := tls.LoadX509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
