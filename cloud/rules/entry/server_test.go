package entry_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/cloud/rules/entry"
	"github.com/frond-edge/frond/internal/devcluster/pki"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// The listener has TLS if it has a certificate; without one it is plain.
func TestServer_Listens(t *testing.T) {
	dir := t.TempDir()
	ca, err := pki.NewAuthority(dir, "ca")
	kit.Must(t, err)
	pair, err := ca.Issue("serving", pki.Subject{Name: "cloudcore", Hosts: []string{"127.0.0.1"}})
	kit.Must(t, err)
	pem, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	kit.Must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	for scheme, cfg := range map[string]entry.Config{"https": {CertFile: pair.Cert, KeyFile: pair.Key}, "http": {}} {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		kit.Must(t, err)
		cfg.Address = l.Addr().String()
		kit.Must(t, l.Close())
		server := entry.NewServer(cfg, hello, zaptest.NewLogger(t))
		streamstest.StartPart(t, server.Start)
		transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}
		kit.Succeeds(t, time.Minute, func() error {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://"+cfg.Address, nil)
			kit.Must(t, err)
			answer, err := transport.RoundTrip(request)
			if err != nil {
				return err
			}
			return answer.Body.Close()
		})
	}
	broken := entry.NewServer(entry.Config{Address: "127.0.0.1:0", CertFile: "missing"}, hello, zaptest.NewLogger(t))
	if err := broken.Start(context.WithoutCancel(t.Context())); err == nil {
		t.Error("a missing certificate is no error")
	}
}
