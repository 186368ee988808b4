package e2e_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/internal/certs/mint"
	"github.com/frond-edge/frond/test/kit"
)

// oldTLS makes this program a client that offers TLS 1.2 at most to the address in it, and prints the result.
const oldTLS = "FROND_E2E_OLD_TLS"

func speakOldTLS(ctx context.Context, address string) int {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, ServerName: "any"}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err == nil {
		err = conn.Close()
	}
	fmt.Println(err)
	return 0
}

func edgeConfig(t *testing.T, name string) config.EdgeCore {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(shared.Dir(), name, "edgecore.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.ParseEdgeCore(data)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// A client of TLS 1.2 is refused by every listener of cloudcore and edgecore. (The hub has a test of its own.)
func TestListeners_RequireTLS13(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(shared.Dir(), "cloudcore-1", "cloudcore.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	cloud, err := config.ParseCloudCore(data, "host")
	if err != nil {
		t.Fatal(err)
	}
	edge := edgeConfig(t, "edge-1")
	listeners := map[string]struct {
		address string
		here    bool // on this host and not on the gateway
	}{
		"inspect": {cloud.Inspect.Address, true}, "gateway": {cloud.Gateway.Address, true}, "scrape": {cloud.Gateway.ScrapeAddress, true},
		"local API": {edge.LocalAPI.Address, false},
		"kubelet":   {net.JoinHostPort(edge.Kubelet.Address, strconv.Itoa(int(edge.Kubelet.Port))), false},
	}
	if !edge.LocalAPI.Pods.Disabled {
		listeners["local API for pods"] = struct {
			address string
			here    bool
		}{edge.LocalAPI.Pods.Address, false}
	}
	for name, l := range listeners {
		t.Run(name, func(t *testing.T) {
			if l.address == "" {
				t.Fatal("it is off")
			}
			cmd, err := shared.Command(t.Context(), "edge-1", program)
			if err != nil {
				t.Fatal(err)
			}
			if l.here {
				cmd = exec.CommandContext(t.Context(), program)
			}
			cmd.Env = append(os.Environ(), oldTLS+"="+l.address)
			out, err := cmd.Output()
			if err != nil || !strings.Contains(string(out), "protocol version not supported") {
				t.Errorf("%s says %q, %v", l.address, out, err)
			}
		})
	}
}

// newCSR returns a request as edgecore makes it, for a node and names.
func newCSR(t *testing.T, node, signer string, names ...string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}, DNSNames: names,
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	usage := certificatesv1.UsageServerAuth
	if signer != certificatesv1.KubeletServingSignerName {
		usage = certificatesv1.UsageClientAuth
	}
	return &certificatesv1.CertificateSigningRequest{
		TypeMeta:   metav1.TypeMeta{Kind: "CertificateSigningRequest", APIVersion: "certificates.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: "attack-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: signer,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage},
		},
	}
}

// postAsNode sends a request through the local API of a gateway, and so over its link and as its node.
func postAsNode(t *testing.T, edge string, csr *certificatesv1.CertificateSigningRequest) (code int, made certificatesv1.CertificateSigningRequest, said string) {
	t.Helper()
	socket := edgeConfig(t, edge).LocalAPI.Socket
	var d net.Dialer
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", socket) }}
	defer transport.CloseIdleConnections()
	data, err := json.Marshal(csr)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://edge/apis/certificates.k8s.io/v1/certificatesigningrequests", bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode == http.StatusCreated {
		if err := json.Unmarshal(body, &made); err != nil {
			t.Fatal(err)
		}
	}
	return resp.StatusCode, made, string(body)
}

// A hostile gateway requests certificates through the real cloudcore, and gets only its own.
func TestCSR_ForeignCertificatesAreRefused(t *testing.T) {
	const serving, client = certificatesv1.KubeletServingSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName
	huge := newCSR(t, "edge-2", serving, "edge-2")
	huge.Spec.Request = append(huge.Spec.Request, make([]byte, 20<<10)...)
	masters := newCSR(t, "edge-2", serving, "edge-2")
	masters.Spec.SignerName = certificatesv1.KubeAPIServerClientSignerName
	for name, tt := range map[string]struct {
		csr  *certificatesv1.CertificateSigningRequest
		code int
		said string
	}{
		"to be a client":             {newCSR(t, "edge-2", client), http.StatusForbidden, "a gateway gets certificates of the signer"},
		"another signer":             {masters, http.StatusForbidden, "a gateway gets certificates of the signer"},
		"in the name of another":     {newCSR(t, "edge-1", serving, "edge-1"), http.StatusForbidden, "can only create a node CSR with CN=system:node:edge-2"},
		"more than a request can be": {huge, http.StatusRequestEntityTooLarge, "limit"},
	} {
		if code, _, said := postAsNode(t, "edge-2", tt.csr); code != tt.code || !strings.Contains(said, tt.said) {
			t.Errorf("%s: %d %s", name, code, said)
		}
	}
	code, made, said := postAsNode(t, "edge-2", newCSR(t, "edge-2", serving, "edge-2", "kubernetes.default.svc"))
	if code != http.StatusCreated {
		t.Fatalf("%d %s", code, said)
	}
	eventually(t, "the request with a foreign name is denied", func(ctx context.Context) string {
		csr, err := sharedKube.CertificatesV1().CertificateSigningRequests().Get(ctx, made.Name, metav1.GetOptions{})
		if err != nil || len(csr.Status.Conditions) != 1 {
			return fmt.Sprint(csr.Status.Conditions, err)
		}
		c := csr.Status.Conditions[0]
		if c.Type != certificatesv1.CertificateDenied || !strings.Contains(c.Message, `"kubernetes.default.svc" is not this node's`) || len(csr.Status.Certificate) > 0 {
			return fmt.Sprint(c)
		}
		return ""
	})
	eventually(t, "people are told", func(context.Context) string {
		if out := runKubectl(t, "get", "events", "--field-selector=reason=CertificateDenied,involvedObject.name=edge-2", "-o", "name"); out == "" {
			return "no event"
		}
		return ""
	})
	many := 0
	for ; many < 100; many++ {
		if code, _, _ = postAsNode(t, "edge-2", newCSR(t, "edge-2", serving, "*")); code != http.StatusCreated {
			break
		}
	}
	if code != http.StatusTooManyRequests {
		t.Errorf("after %d requests: %d", many, code)
	}
	t.Logf("%d requests were taken", many)
}

// servingExpiry returns the expiry of a kubelet's serving certificate, from the gateway's own metric.
func servingExpiry(ctx context.Context, edge string) (time.Time, error) {
	ends, err := shared.Metric(ctx, edge, "frond_certificate_expiry_seconds", "certificate=kubelet")
	return time.Unix(int64(ends), 0), err
}

// A gateway whose serving certificate expired while it was off starts without a link, and gets the next certificate without help once
// it has a link.
func TestServingCertificate_ExpiredIsRenewed(t *testing.T) {
	pki := filepath.Join(edgeConfig(t, "edge-1").Dir, "kubelet", "pki")
	eventually(t, "edge-1 has a certificate", func(ctx context.Context) string {
		if ends, err := servingExpiry(ctx, "edge-1"); err != nil || ends.Before(time.Now()) {
			return fmt.Sprint(ends, err)
		}
		return ""
	})
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		err := shared.Heal(ctx, "edge-1")
		if shared.PID("edge-1") == 0 {
			err = errors.Join(err, shared.Start(ctx, "edge-1"))
		}
		if err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(shared.Kill(t.Context(), "edge-1"), shared.Cut(t.Context(), "edge-1", false)); err != nil {
		t.Fatal(err)
	}
	expired := time.Now().Add(-time.Hour).Truncate(time.Second)
	current, old := filepath.Join(pki, "kubelet-server-current.pem"), filepath.Join(pki, "kubelet-server-old.pem")
	writeExpiredCert(t, old, expired)
	if err := errors.Join(os.Remove(current), os.Symlink(old, current)); err != nil { // as the certificate manager stores them
		t.Fatal(err)
	}
	if err := shared.Start(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	if ends, err := servingExpiry(t.Context(), "edge-1"); err != nil || !ends.Equal(expired) {
		t.Errorf("without a link the certificate ends %v, %v; it ended %v", ends, err, expired)
	}
	process := shared.PID("edge-1")
	if err := shared.Heal(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "edge-1 has another certificate", func(ctx context.Context) string {
		if ends, err := servingExpiry(ctx, "edge-1"); err != nil || ends.Before(time.Now()) {
			return fmt.Sprint(ends, err)
		}
		return ""
	})
	eventually(t, "the apiserver believes it", func(ctx context.Context) string {
		if out, err := shared.Kubectl(ctx, "", "get", "--raw", "/api/v1/nodes/edge-1/proxy/healthz"); err != nil || out != "ok" {
			return fmt.Sprint(out, err)
		}
		return ""
	})
	if now := shared.PID("edge-1"); now != process {
		t.Errorf("it took another process: %d, not %d", now, process)
	}
}

// A call of a Ready gateway whose serving certificate is not issued yet waits for the certificate. The user never sees a certificate
// error.
func TestServingCertificate_IsWaitedFor(t *testing.T) {
	const signer = "controller-manager"
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		err := shared.Resume(ctx, signer)
		if shared.PID("edge-1") == 0 {
			err = errors.Join(err, shared.Start(ctx, "edge-1"))
		}
		if err != nil {
			t.Error(err)
		}
	})
	pki := filepath.Join(edgeConfig(t, "edge-1").Dir, "kubelet", "pki")
	if err := errors.Join(shared.Pause(ctx, signer), shared.Kill(ctx, "edge-1"), os.RemoveAll(pki), shared.Start(ctx, "edge-1")); err != nil {
		t.Fatal(err)
	}
	ask := func(ctx context.Context) string {
		out, err := shared.Kubectl(ctx, "", "get", "--raw", "/api/v1/nodes/edge-1/proxy/healthz")
		switch {
		case err == nil && out == "ok":
			return ""
		case err == nil || strings.Contains(err.Error(), "x509") || strings.Contains(err.Error(), "certificate is valid for"):
			t.Errorf("the call ended with %q, %v", out, err)
		}
		return fmt.Sprint(err)
	}
	// The apiserver's connection to the killed process may still be in its pool. A call over it ends with it, and proves nothing.
	eventually(t, "a call is held at the gateway", func(ctx context.Context) string {
		said := ask(ctx)
		if n, err := shared.Metric(ctx, "edge-1", "frond_tunnel_refused_total", "reason=unready"); err != nil || n == 0 {
			return fmt.Sprint(n, err, said)
		}
		return ""
	})
	if err := shared.Resume(ctx, signer); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the kubelet answers", ask)
}

// writeExpiredCert writes an expired certificate with its key.
func writeExpiredCert(t *testing.T, file string, ended time.Time) {
	t.Helper()
	pair, err := mint.SelfSign(x509.Certificate{
		Subject:  pkix.Name{CommonName: "system:node:edge-1", Organization: []string{"system:nodes"}},
		DNSNames: []string{"edge-1"}, NotBefore: ended.Add(-time.Hour), NotAfter: ended,
	})
	kit.Must(t, err)
	cert, key, err := pair.PEM()
	kit.Must(t, err)
	kit.Must(t, os.WriteFile(file, append(cert, key...), 0o600))
}
