package attacks_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/config"
)

// edgeConfig reads a gateway's configuration.
func edgeConfig(t *testing.T, node string) (c config.EdgeCore) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(shared.Dir(), node, "edgecore.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// listenAddresses lists the TCP addresses on which a process listens.
func listenAddresses(t *testing.T, pid int) (all []string) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("process %d has no files: %v", pid, err)
	}
	var sockets []string
	for _, f := range files {
		to, err := os.Readlink(f)
		if inode, is := strings.CutPrefix(to, "socket:["); err == nil && is {
			sockets = append(sockets, strings.TrimSuffix(inode, "]"))
		}
	}
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			// sl local_address rem_address st … inode
			if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && slices.Contains(sockets, f[9]) {
				var port int
				address, hex, _ := strings.Cut(f[1], ":")
				if _, err := fmt.Sscanf(hex, "%x", &port); err != nil {
					t.Fatal(err)
				}
				if address != "0100007F" {
					t.Errorf("it listens on %s of %s: not on loopback alone", f[1], table)
				}
				all = append(all, fmt.Sprintf("127.0.0.1:%d", port))
			}
		}
	}
	return all
}

// TestLocalListeners_RefuseAnonymous connects to each listener as any user of the machine. The embedded NATS server is not among them, and
// the others give no information to an unauthenticated client.
func TestLocalListeners_RefuseAnonymous(t *testing.T) {
	c := edgeConfig(t, victim)
	found := listenAddresses(t, shared.PID(victim))
	for _, known := range []string{c.Listen, c.LocalAPI.Address, fmt.Sprintf("%s:%d", c.Kubelet.Address, c.Kubelet.Port)} {
		if !slices.Contains(found, known) {
			t.Errorf("%s is not found among %v", known, found)
		}
	}
	for _, address := range found {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
		// A NATS server sends first; this makes any other protocol answer.
		_, _ = conn.Write([]byte("CONNECT {\"verbose\":true}\r\nPING\r\n"))
		line, _ := bufio.NewReader(conn).ReadString('\n') // no answer is accepted
		if strings.HasPrefix(line, "INFO") || strings.HasPrefix(line, "+OK") || strings.HasPrefix(line, "PONG") {
			t.Errorf("%s is a NATS server: %q", address, line)
		}
		_ = conn.Close()
	}
	for path, mode := range map[string]fs.FileMode{
		c.LocalAPI.Socket: 0o600, filepath.Join(c.Dir, "identity"): 0o700, filepath.Join(c.Dir, "identity", "node.nk"): 0o600,
	} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info.Mode().Perm(), err)
		}
	}
}

// podClient is a client program on the gateway.
type podClient struct {
	token string
}

// fetchURL sends a request to a listener of the gateway, whose certificate is for host.
func (a podClient) fetchURL(ctx context.Context, host, url string, roots *x509.CertPool) (code int, body []byte, err error) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: host, MinVersion: tls.VersionTLS13},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	if a.token != "" {
		request.Header.Set("Authorization", "Bearer "+a.token)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

// podToken returns the service account token of a node's pod.
func podToken(t *testing.T, node string) string {
	t.Helper()
	p, err := kube.CoreV1().Pods("default").Get(t.Context(), "on-"+node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	hour := int64(3600)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &hour, BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID},
	}}
	made, err := kube.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "of-"+node, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made.Status.Token
}

// TestLocalListeners_RefusePods sends requests to the victim's local API, kubelet and metrics as a pod: without a token, with an invalid
// one, with the token of a pod elsewhere, and with that of its own pod, which has no role.
func TestLocalListeners_RefusePods(t *testing.T) {
	c := edgeConfig(t, victim)
	pem, err := os.ReadFile(filepath.Join(shared.Dir(), "pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	kubelet := fmt.Sprintf("https://%s:%d", c.Kubelet.Address, c.Kubelet.Port)
	var all []string
	for _, path := range []string{
		"/api/v1/namespaces/default/secrets/of-" + victim, "/api/v1/secrets", "/api/v1/namespaces/default/pods", "/api/v1/nodes/" + victim,
		"/frond/store", "/frond/logs", "/debug/pprof/heap", "/api/v1/namespaces/default/secrets?watch=true",
	} {
		all = append(all, "https://"+c.LocalAPI.Address+path)
	}
	for _, path := range []string{
		"/pods", "/runningpods/", "/metrics", "/configz", "/debug/pprof/heap", "/logs/", "/containerLogs/default/on-" + victim + "/main",
		"/containerLogs/..%2f..%2f/etc/passwd", "/exec/default/on-" + victim + "/main?command=id&output=1", "/checkpoint/default/on-" + victim + "/main",
	} {
		all = append(all, kubelet+path)
	}
	refused := func() float64 {
		n, err := shared.Metric(t.Context(), victim, "frond_localapi_requests_total", "identity=none")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := refused()
	for name, a := range map[string]podClient{
		"without a token": {}, "with one that is none": {token: "x.y.z"}, "with a bootstrap token": {token: "abcdef.0123456789abcdef"},
		"of another gateway's pod": {token: podToken(t, stolen)}, "of the pod there": {token: podToken(t, victim)},
	} {
		t.Run(name, func(t *testing.T) {
			for _, url := range all {
				host := victim
				if !strings.HasPrefix(url, kubelet) {
					host = ""
				}
				code, body, err := a.fetchURL(t.Context(), host, url, roots)
				if untrusted, is := errors.AsType[*tls.CertificateVerificationError](err); is {
					t.Fatalf("%s shows a certificate of nobody: %v", url, untrusted)
				}
				if err == nil && code/100 == 2 || bytes.Contains(body, []byte(canary)) {
					t.Errorf("%s: %d %.200q", url, code, body)
				}
			}
		})
	}
	if refused() == before {
		t.Error("no refusal is counted")
	}
	// The public endpoints must contain no secret and allow no further access.
	for _, path := range []string{"/metrics", "/readyz?verbose", "/debug/pprof/heap", "/debug/pprof/", "/frond/store"} {
		code, body, err := podClient{}.fetchURL(t.Context(), "", "http://"+c.Listen+path, roots)
		if err != nil || bytes.Contains(body, []byte(canary)) || code == http.StatusOK && !strings.HasPrefix(path, "/metrics") && !strings.HasPrefix(path, "/readyz") {
			t.Errorf("%s: %d %.200q %v", path, code, body, err)
		}
	}
	changeVictim(t)
}
