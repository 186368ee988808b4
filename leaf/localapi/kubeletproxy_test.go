package localapi_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/deviceview"
	"github.com/frond-edge/frond/api/restart"
	"github.com/frond-edge/frond/leaf/localapi"
	"github.com/frond-edge/frond/leaf/localapi/podproxy"
)

// fakeKubelet is a kubelet's port: it reviews its callers at its own API, and returns the request that it got.
type fakeKubelet struct {
	t   *testing.T
	api kubernetes.Interface
}

func (k *fakeKubelet) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	token, _ := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
	who, err := k.api.AuthenticationV1().TokenReviews().Create(req.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil || !who.Status.Authenticated {
		http.Error(w, fmt.Sprint("Unauthorized: ", err), http.StatusUnauthorized)
		return
	}
	review := func(uid string) (*authorizationv1.SubjectAccessReview, error) {
		return k.api.AuthorizationV1().SubjectAccessReviews().Create(req.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: who.Status.User.Username, UID: uid,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes", Subresource: "proxy", Name: gatewayNode},
		}}, metav1.CreateOptions{})
	}
	if may, err := review(who.Status.User.UID); err != nil || !may.Status.Allowed {
		http.Error(w, fmt.Sprint("Forbidden: ", err), http.StatusForbidden)
		return
	}
	if may, err := review("guessed"); err == nil && may.Status.Allowed {
		k.t.Error("anyone who names that user may use the kubelet")
	}
	_, _ = fmt.Fprintf(w, "%s %s?%s", req.Method, req.URL.Path, req.URL.RawQuery)
}

// withKubelet gives a gateway a kubelet's port. Its certificate expired long ago and is for another name, but is the kubelet's own.
func withKubelet(t *testing.T) (option, *fakeKubelet, string) {
	t.Helper()
	k := &fakeKubelet{t: t}
	server := httptest.NewUnstartedServer(k)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
	server.StartTLS()
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubelet.crt")
	write := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(file, write, 0o600); err != nil {
		t.Fatal(err)
	}
	port := podproxy.Endpoint{Address: server.Listener.Addr().String(), Certificate: func() (*x509.Certificate, error) {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		block, _ := pem.Decode(data)
		return x509.ParseCertificate(block.Bytes)
	}}
	return func(c *localapi.Config) { c.Kubelet = port }, k, file
}

func TestKubeletProxy_ServesLogs(t *testing.T) {
	kubelet, port, file := withKubelet(t)
	g := newGateway(t, true, kubelet)
	port.api = g.newClient(true)
	two := newPod("two", "u2", "2")
	two.Spec.Containers = append(two.Spec.Containers, corev1.Container{Name: "side"})
	g.deliverObjects(newPod("web", "u1", "1"), two)
	tail := int64(3)
	for name, tt := range map[string]struct {
		pod  string
		opts corev1.PodLogOptions
		want string // the path, or a part of the error
	}{
		"the only container":      {"web", corev1.PodLogOptions{TailLines: &tail}, "GET /containerLogs/default/web/main?tailLines=3"},
		"a named one":             {"two", corev1.PodLogOptions{Container: "side", Follow: true}, "GET /containerLogs/default/two/side?follow=true"},
		"none is named":           {"two", corev1.PodLogOptions{}, "a container name must be specified for pod two, choose one of: [main side]"},
		"a container it has not":  {"web", corev1.PodLogOptions{Container: "x"}, "container x is not valid for pod web"},
		"a pod that is not there": {"none", corev1.PodLogOptions{}, `"reason":"NotFound"`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := g.newClient(false).CoreV1().Pods("default").GetLogs(tt.pod, &tt.opts).DoRaw(t.Context())
			if text := string(got); err == nil && text != tt.want || !strings.Contains(text, tt.want) {
				t.Errorf("%q, %v; want %q", text, err, tt.want)
			}
		})
	}
	t.Run("another program has the port", func(t *testing.T) {
		p := newPKI(t)
		other, err := os.ReadFile(p.path("server.crt"))
		if err == nil {
			err = os.WriteFile(file, other, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := g.newClient(false).CoreV1().Pods("default").GetLogs("web", &corev1.PodLogOptions{}).DoRaw(t.Context())
		if !apierrors.IsServiceUnavailable(err) || !strings.Contains(string(got), "not the kubelet of this gateway") {
			t.Errorf("the token went to a stranger: %s, %v", got, err)
		}
	})
}

// fakeStopper records the containers that it was asked to stop.
type fakeStopper struct{ stopped []string }

func (s *fakeStopper) Stop(_ context.Context, namespace, pod, container string, grace int64) (string, error) {
	s.stopped = append(s.stopped, fmt.Sprintf("%s/%s/%s %d", namespace, pod, container, grace))
	return "id-" + container, nil
}

func TestRestart_StopsContainers(t *testing.T) {
	always, grace := corev1.ContainerRestartPolicyAlways, int64(7)
	base := func(name string, policy corev1.RestartPolicy) *corev1.Pod {
		p := newPod(name, "u-"+name, "1")
		p.Spec.RestartPolicy, p.Spec.TerminationGracePeriodSeconds = policy, &grace
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "second"})
		p.Spec.InitContainers = []corev1.Container{{Name: "first"}, {Name: "sidecar", RestartPolicy: &always}}
		return p
	}
	leaving := base("leaving", corev1.RestartPolicyAlways)
	leaving.DeletionTimestamp = &metav1.Time{Time: leaving.CreationTimestamp.Time}
	for name, tt := range map[string]struct {
		pod, query string
		code       int
		stopped    []string
	}{
		"all that run all the time":         {"always", "", 200, []string{"default/always/main 7", "default/always/second 7"}},
		"a named one":                       {"always", "?container=second", 200, []string{"default/always/second 7"}},
		"a sidecar":                         {"never", "?container=sidecar", 200, []string{"default/never/sidecar 7"}},
		"one twice":                         {"always", "?container=main&container=main", 200, []string{"default/always/main 7"}},
		"what must not end in order":        {"failure", "?container=main", 200, []string{"default/failure/main 0"}},
		"what would not come back":          {"never", "", 400, nil},
		"an init container":                 {"always", "?container=first", 400, nil},
		"a container it has not":            {"always", "?container=x", 400, nil},
		"one good and one it has not":       {"always", "?container=main&container=x", 400, nil},
		"a pod that is being deleted":       {"leaving", "", 400, nil},
		"a pod that is not there":           {"none", "", 404, nil},
		"something that is not a container": {"always/x", "", 400, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := &fakeStopper{}
			g := newGateway(t, true, func(c *localapi.Config) { c.Stopper = s })
			g.deliverObjects(base("always", corev1.RestartPolicyAlways), base("failure", corev1.RestartPolicyOnFailure), base("never", corev1.RestartPolicyNever), leaving)
			code, answer := sendAPIRequest(t, g.api.ClientConfig(), apiRequest{method: "POST", path: restart.Path + "default/" + tt.pod + "/restart" + tt.query})
			if diff := cmp.Diff(tt.stopped, s.stopped); diff != "" || code != tt.code {
				t.Errorf("code %d, want %d: %v (-want +got):\n%s", code, tt.code, answer, diff)
			}
		})
	}
}

// Programs that connect over TLS, as pods do, get neither logs nor commands: administrators use the unix socket.
func TestKubeletProxy_RefusesTLSClients(t *testing.T) {
	p := newPKI(t)
	kubelet, port, _ := withKubelet(t)
	s := &fakeStopper{}
	devices := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	g := newGateway(t, true, withTLS(p), kubelet, func(c *localapi.Config) { c.Stopper, c.Devices = s, devices })
	port.api = g.newClient(true)
	g.deliverObjects(newPod("web", "u1", "1"))
	client, err := rest.HTTPClientFor(&rest.Config{Host: "https://" + g.api.Addr(), TLSClientConfig: rest.TLSClientConfig{
		CAFile: p.path("ca.crt"), CertFile: p.path("client.crt"), KeyFile: p.path("client.key"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	if code, answer := sendAPIRequest(t, g.api.ClientConfig(), apiRequest{method: "PUT", path: deviceview.Path + "/default/boiler/override"}); code != http.StatusNoContent {
		t.Errorf("on the unix socket: %d, %s", code, answer)
	}
	for path, method := range map[string]string{
		"/api/v1/namespaces/default/pods/web/log": "GET", restart.Path + "default/web/restart": "POST",
		deviceview.Path: "GET", deviceview.Path + "/default/boiler/override": "PUT",
	} {
		req, err := http.NewRequestWithContext(t.Context(), method, "https://"+g.api.Addr()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode < 400 || len(s.stopped) > 0 {
			t.Errorf("%s %s: %d, %v", method, path, resp.StatusCode, s.stopped)
		}
	}
}

// A gateway without a part for devices says how to get one.
func TestDevicesPath_WithoutDevices(t *testing.T) {
	g := newGateway(t, true)
	cfg := g.api.ClientConfig()
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, cfg.Host+deviceview.Path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), "devices.mqtt") {
		t.Errorf("%d, %s", resp.StatusCode, body)
	}
}
