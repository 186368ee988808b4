package localapi_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/leaf/localapi"
	"github.com/frond-edge/frond/leaf/localapi/admin"
)

// testPKI is a CA with a serving and a client certificate in a folder.
type testPKI struct{ dir string }

func (p testPKI) path(name string) string { return filepath.Join(p.dir, name) }

func newPKI(t *testing.T) testPKI {
	t.Helper()
	p := testPKI{t.TempDir()}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caKey := p.issueCert(t, "ca", ca, ca, nil)
	p.issueCert(t, "server", &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "localhost"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, ca, caKey)
	p.issueCert(t, "client", &x509.Certificate{
		SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "operator", Organization: []string{"system:masters"}}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca, caKey)
	return p
}

func (p testPKI) issueCert(t *testing.T, name string, c, parent *x509.Certificate, signer *ecdsa.PrivateKey) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".crt": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(p.path(file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return key
}

func withTLS(p testPKI) option {
	return func(c *localapi.Config) {
		c.Address, c.CertFile, c.KeyFile, c.ClientCAFile = "127.0.0.1:0", p.path("server.crt"), p.path("server.key"), p.path("ca.crt")
	}
}

func TestListeners_TLS(t *testing.T) {
	p := newPKI(t)
	g := newGateway(t, true, withTLS(p))
	g.deliverObjects(newPod("web", "u1", "1"))
	cfg := &rest.Config{Host: "https://" + g.api.Addr(), TLSClientConfig: rest.TLSClientConfig{
		CAFile: p.path("ca.crt"), CertFile: p.path("client.crt"), KeyFile: p.path("client.key"),
	}}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	if _, err := clientFor(t, cfg).CoreV1().Pods("default").Get(t.Context(), "web", metav1.GetOptions{}); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
	if code, _ := httpGet(t, client, cfg.Host+"/frond/store"); code != http.StatusForbidden {
		t.Errorf("store view over TLS: %d", code)
	}
	cfg.CertFile, cfg.KeyFile = "", ""
	if _, err := clientFor(t, cfg).CoreV1().Pods("default").Get(t.Context(), "web", metav1.GetOptions{}); err == nil {
		t.Error("a client without a certificate was served")
	}
}

func httpGet(t *testing.T, c *http.Client, url string) (code int, body []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	if body, err = io.ReadAll(r.Body); err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, body
}

func TestListeners_UnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	if err := os.WriteFile(path, []byte("left by a killed process"), 0o644); err != nil {
		t.Fatal(err)
	}
	g := newGateway(t, true, func(c *localapi.Config) { c.UnixSocket = path })
	g.deliverObjects(newConfigMap("a", "1"))
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("socket: %v, %v", err, info.Mode())
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	defer transport.CloseIdleConnections()
	_, body := httpGet(t, &http.Client{Transport: transport}, "http://edge/frond/store")
	var view admin.StoreView
	if err := json.Unmarshal(body, &view); err != nil || len(view.Objects) == 0 || view.Objects[0].Name != "a" || view.Cursor.StreamEpoch == "" {
		t.Fatalf("store view: %v, %+v", err, view)
	}
	g.stop()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket's file is still there: %v", err)
	}
}
