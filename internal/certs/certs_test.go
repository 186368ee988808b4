package certs_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/internal/certs"
	"github.com/frond-edge/frond/internal/certs/mint"
	"github.com/frond-edge/frond/test/kit"
)

// writeCertificate writes a self-signed certificate and its key to two files.
func writeCertificate(t testing.TB, cert, key, name string, ends time.Time) {
	t.Helper()
	pair, err := mint.NewAuthority(x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: ends.Add(-time.Hour), NotAfter: ends,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	kit.Must(t, err)
	certPEM, keyPEM, err := pair.PEM()
	kit.Must(t, err)
	kit.Must(t, os.WriteFile(cert, certPEM, 0o600))
	if key != "" {
		kit.Must(t, os.WriteFile(key, keyPEM, 0o600))
	}
}

// handshakeErrors runs a handshake, and returns the error of each side.
func handshakeErrors(t testing.TB, server, client *tls.Config) (served, dialled error) {
	t.Helper()
	near, far := net.Pipe()
	defer func() { kit.Must(t, errors.Join(near.Close(), far.Close())) }()
	var g errgroup.Group
	g.Go(func() error {
		conn := tls.Server(far, server)
		if err := conn.HandshakeContext(t.Context()); err != nil {
			return err
		}
		_, err := conn.Write([]byte("x"))
		return err
	})
	conn := tls.Client(near, client)
	if dialled = conn.HandshakeContext(t.Context()); dialled == nil {
		_, dialled = conn.Read(make([]byte, 1)) // with TLS 1.3 a client learns of its refusal only then
	}
	if dialled != nil {
		_ = near.SetDeadline(time.Now()) // the server need not wait
	}
	return g.Wait(), dialled
}

func trustConfig(t testing.TB, file, name string) *tls.Config {
	t.Helper()
	pool, err := certs.LoadPool(file)
	kit.Must(t, err)
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: name}
}

func TestListener_ReloadsFiles(t *testing.T) {
	dir := t.TempDir()
	cert, key, clients := filepath.Join(dir, "crt"), filepath.Join(dir, "key"), filepath.Join(dir, "clients")
	ends := time.Now().Add(time.Minute)
	if _, err := (certs.Listener{CertFile: cert, KeyFile: key}).Config(); err == nil {
		t.Error("a listener without files is made")
	}
	writeCertificate(t, cert, key, "first", ends)
	writeCertificate(t, clients, "", "other", ends)
	config, err := certs.Listener{CertFile: cert, KeyFile: key, ClientCAFile: clients, Auth: tls.RequireAndVerifyClientCert}.Config()
	kit.Must(t, err)
	own := filepath.Join(dir, "own")
	writeCertificate(t, own+".crt", own+".key", "client", ends)
	pair, err := tls.LoadX509KeyPair(own+".crt", own+".key")
	kit.Must(t, err)
	dial := func(name string) (error, error) {
		client := trustConfig(t, cert, name)
		client.Certificates = []tls.Certificate{pair}
		return handshakeErrors(t, config, client)
	}
	if served, _ := dial("first"); served == nil {
		t.Error("a client of an authority that is not there is served")
	}
	data, err := os.ReadFile(own + ".crt")
	kit.Must(t, err)
	kit.Must(t, os.WriteFile(clients, data, 0o600))
	if served, dialled := dial("first"); served != nil || dialled != nil {
		t.Errorf("a client of the new authority: %v, %v", served, dialled)
	}
	writeCertificate(t, cert, key, "second", ends)
	if served, dialled := dial("second"); served != nil || dialled != nil {
		t.Errorf("with the new certificate: %v, %v", served, dialled)
	}
	trusted := trustConfig(t, cert, "second")
	trusted.Certificates = []tls.Certificate{pair}
	writeCertificate(t, cert, "", "third", ends) // its key comes later
	if served, dialled := handshakeErrors(t, config, trusted); served != nil || dialled != nil {
		t.Errorf("between two writes: %v, %v", served, dialled)
	}
	old := trustConfig(t, cert, "third")
	old.MaxVersion = tls.VersionTLS12
	if _, err := handshakeErrors(t, config, old); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.2: %v", err)
	}
}

func TestExpiry(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "crt")
	ends := time.Unix(2_000_000_000, 0)
	writeCertificate(t, file, "", "a", ends)
	metric := certs.NewExpiry(certs.FileExpiries(map[string]string{"hub": file, "gone": filepath.Join(dir, "none"), "off": ""}))
	expect := func(at int64) {
		t.Helper()
		want := fmt.Sprintf(`# HELP frond_certificate_expiry_seconds When a certificate that this process shows or trusts ends, as Unix time; of several authorities in one file the first.
# TYPE frond_certificate_expiry_seconds gauge
frond_certificate_expiry_seconds{certificate="hub"} %d
`, at)
		if err := testutil.CollectAndCompare(metric, strings.NewReader(want)); err != nil {
			t.Error(err)
		}
	}
	expect(ends.Unix())
	writeCertificate(t, file, "", "a", ends.Add(time.Hour))
	expect(ends.Unix() + 3600)
}
