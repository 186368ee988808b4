package kubelet_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/edged/kubelet"
	"github.com/frond-edge/frond/internal/certs/mint"
	"github.com/frond-edge/frond/test/kit"
)

// shownCertificate returns the certificate that a port presents for a server name, verified as the only trusted one.
func shownCertificate(t *testing.T, config *tls.Config, name string) *x509.Certificate {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var g errgroup.Group
	g.Go(func() error {
		far, err := listener.Accept()
		if err != nil {
			return err
		}
		defer func() { _ = far.Close() }() // the client has refused
		return tls.Server(far, config).HandshakeContext(t.Context())
	})
	dialer := tls.Dialer{Config: &tls.Config{ServerName: name, MinVersion: tls.VersionTLS13, RootCAs: x509.NewCertPool()}}
	_, err = dialer.DialContext(t.Context(), "tcp", listener.Addr().String())
	var shown *x509.Certificate
	if refused := (*tls.CertificateVerificationError)(nil); errors.As(err, &refused) {
		shown = refused.UnverifiedCertificates[0]
	}
	_, _ = listener.Close(), g.Wait() // as above
	return shown
}

// pairFile writes a certificate with its key into one file, as a certificate manager does.
func pairFile(t *testing.T, file, name string, ends time.Time) {
	t.Helper()
	pair, err := mint.SelfSign(x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: ends.Add(-time.Hour), NotAfter: ends,
	})
	kit.Must(t, err)
	cert, key, err := pair.PEM()
	kit.Must(t, err)
	kit.Must(t, os.MkdirAll(filepath.Dir(file), 0o700))
	kit.Must(t, os.WriteFile(file, append(cert, key...), 0o600))
}

// The port presents the best certificate, and always one: a gateway that was offline for long must still be reachable.
func TestServingCert_ShowsBestCertificate(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		prepare func(file string)
		want    string
	}{
		"none yet":       {func(string) {}, kubelet.LocalName},
		"a good one":     {func(file string) { pairFile(t, file, "good", now.Add(time.Hour)) }, "good"},
		"an expired one": {func(file string) { pairFile(t, file, "expired", now.Add(-time.Minute)) }, "expired"},
		"a damaged one": {func(file string) {
			pairFile(t, file, "damaged", now.Add(time.Hour))
			if err := os.Truncate(file, 200); err != nil {
				t.Fatal(err)
			}
		}, kubelet.LocalName},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			tt.prepare(filepath.Join(dir, "pki", "kubelet-server-current.pem"))
			config, local := startServing(t, kubelet.ServingCertConfig{Node: "gw-1", Dir: dir, NodeNames: func() []string { return nil }}, "")
			if shown := shownCertificate(t, config, "gw-1"); shown == nil || shown.Subject.CommonName != tt.want {
				t.Errorf("callers are shown %v, want %s", shown, tt.want)
			}
			if shown := shownCertificate(t, config, kubelet.LocalName); shown == nil || !shown.Equal(local) {
				t.Error("a program of this machine is shown another certificate")
			}
		})
	}
	t.Run("files that are replaced", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "both.pem")
		pairFile(t, file, "first", now.Add(time.Hour))
		config, _ := startServing(t, kubelet.ServingCertConfig{Node: "gw-1", Dir: t.TempDir()}, file)
		for _, want := range []string{"first", "second"} {
			pairFile(t, file, want, now.Add(time.Hour))
			if shown := shownCertificate(t, config, "gw-1"); shown == nil || shown.Subject.CommonName != want {
				t.Errorf("callers are shown %v, want %s", shown, want)
			}
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if shown := shownCertificate(t, config, "gw-1"); shown == nil || shown.Subject.CommonName != "second" {
			t.Errorf("while the file is being written, callers are shown %v", shown)
		}
	})
}

// The port waits for a certificate that callers can verify, and does not wait if the certificate is a file.
func TestServingCert_Awaits(t *testing.T) {
	kube, err := kubernetes.NewForConfig(&rest.Config{Host: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	asked := func(dir string) kubelet.ServingCertConfig {
		return kubelet.ServingCertConfig{Node: "gw-1", Dir: dir, NodeNames: func() []string { return nil }, Now: func() time.Time { return now }}
	}
	soon := func(t *testing.T) context.Context {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	for name, ends := range map[string]time.Time{"none yet": {}, "an expired one": now.Add(-time.Minute), "a good one": now.Add(time.Hour)} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if !ends.IsZero() {
				old := filepath.Join(dir, "pki", "kubelet-server-old.pem")
				pairFile(t, old, "gw-1", ends)
				if err := os.Symlink(old, filepath.Join(dir, "pki", "kubelet-server-current.pem")); err != nil { // as the manager keeps them
					t.Fatal(err)
				}
			}
			await, update, err := kubelet.AwaitServingCert(t.Context(), asked(dir), "", kube, zaptest.NewLogger(t))
			if err != nil {
				t.Fatal(err)
			}
			if err := await(soon(t)); (err == nil) != ends.After(now) {
				t.Errorf("the wait ends with %v", err)
			}
			var g errgroup.Group
			g.Go(func() error { return await(t.Context()) })
			pair := filepath.Join(t.TempDir(), "next.pem")
			pairFile(t, pair, "gw-1", now.Add(2*time.Hour))
			data, err := os.ReadFile(pair)
			if err != nil {
				t.Fatal(err)
			}
			cert, key := pem.Decode(data)
			if err := update(pem.EncodeToMemory(cert), key); err != nil {
				t.Fatal(err)
			}
			if err := g.Wait(); err != nil {
				t.Errorf("with the next certificate the wait ends with %v", err)
			}
		})
	}
	t.Run("a file", func(t *testing.T) {
		await, _, err := kubelet.AwaitServingCert(t.Context(), asked(t.TempDir()), filepath.Join(t.TempDir(), "missing.pem"), kube, zaptest.NewLogger(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := await(soon(t)); err != nil {
			t.Errorf("it waits for a file: %v", err)
		}
	})
}

// startServing starts to serve with a certificate requested from an API that does not answer, or with a file.
func startServing(t *testing.T, cfg kubelet.ServingCertConfig, file string) (*tls.Config, *x509.Certificate) {
	t.Helper()
	kube, err := kubernetes.NewForConfig(&rest.Config{Host: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	config, local, err := kubelet.ServeCert(t.Context(), cfg, file, kube, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	return config, local
}
