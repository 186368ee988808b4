package inspect_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	api "github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/cloud/inspect"
	"github.com/frond-edge/frond/internal/devcluster/pki"
	"github.com/frond-edge/frond/test/kit"
)

func ctxOf(t *testing.T) context.Context {
	t.Helper()
	return context.WithoutCancel(t.Context())
}

// startServer runs the server as cloudcore does, with exactly its rights, and returns its address and the CA of its certificate.
func (w *inspectFixture) startServer() (address, authority string) {
	w.Helper()
	dir := w.TempDir()
	ca, err := pki.NewAuthority(dir, "ca")
	if err != nil {
		w.Fatal(err)
	}
	pair, err := ca.Issue("serving", pki.Subject{Name: "cloudcore", Hosts: []string{api.ServerName}})
	if err != nil {
		w.Fatal(err)
	}
	users := filepath.Join(dir, "users.crt")
	if err := os.WriteFile(users, sharedCluster.Cluster(w).Config().CAData, 0o600); err != nil {
		w.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(sharedCluster.Cluster(w).ConfigWithRules(w, "frond-inspect-test", inspect.Rules()))
	if err != nil {
		w.Fatal(err)
	}
	address = freeAddress(w.T)
	server := inspect.NewServer(inspect.Config{Address: address, CertFile: pair.Cert, KeyFile: pair.Key, ClientCAFile: users}, kube, w.view, zaptest.NewLogger(w))
	ctx, cancel := context.WithCancel(ctxOf(w.T))
	var g errgroup.Group
	g.Go(func() error { return server.Start(ctx) })
	w.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			w.Errorf("server: %v", err)
		}
	})
	kit.Receive(w, "the server listens", server.Ready())
	return "https://" + address, ca.Cert
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// requestAs sends a request as the user of a client configuration.
func requestAs(t *testing.T, cfg *rest.Config, server, authority, path string) (int, string) {
	t.Helper()
	cfg = rest.CopyConfig(cfg)
	cfg.CAData, cfg.CAFile, cfg.ServerName = nil, authority, api.ServerName
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Close = true
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// TestServer_KubernetesDecidesAccess sends requests as different users to the real listener.
func TestServer_KubernetesDecidesAccess(t *testing.T) {
	w := newInspectFixture(t)
	server, authority := w.startServer()
	cluster := sharedCluster.Cluster(t)
	one := api.PathNodes + "/" + w.node
	rule := func(verb string, resources ...string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: resources, Verbs: []string{verb}}}
	}
	stranger := &rest.Config{Host: server}
	token := rest.CopyConfig(stranger)
	token.BearerToken = w.createToken()
	lie := rest.CopyConfig(stranger)
	lie.BearerToken = "no token at all"
	for name, tt := range map[string]struct {
		user *rest.Config
		path string
		code int
		says string
	}{
		"nobody":                          {stranger, api.PathNodes, 401, "authentication required"},
		"nobody, an unknown node":         {stranger, api.PathNodes + "/nobody", 401, "authentication required"},
		"a made up token":                 {lie, api.PathNodes, 401, "authentication required"},
		"an administrator":                {cluster.Config(), api.PathNodes, 200, w.node},
		"an administrator, one node":      {cluster.Config(), one, 200, `"owner":"owner of ` + w.node},
		"an administrator, its objects":   {cluster.Config(), one + api.PathObjects, 200, `"objects":[]`},
		"an administrator, no such node":  {cluster.Config(), api.PathNodes + "/nobody", 404, "not found"},
		"a user without rights":           {cluster.ConfigFor("somebody"), api.PathNodes, 403, `user "somebody" may not list nodes`},
		"who may list":                    {cluster.ConfigWithRules(t, "lister", rule("list", "nodes")), api.PathNodes, 200, w.node},
		"who may list, one node":          {cluster.ConfigWithRules(t, "lister", rule("list", "nodes")), one, 403, "may not get nodes " + w.node},
		"who may get":                     {cluster.ConfigWithRules(t, "getter", rule("get", "nodes")), one, 200, w.node},
		"who may get, the objects":        {cluster.ConfigWithRules(t, "getter", rule("get", "nodes")), one + api.PathObjects, 403, "may not get nodes/sync"},
		"who may get them":                {cluster.ConfigWithRules(t, "syncer", rule("get", "nodes/sync")), one + api.PathObjects, 200, `"objects":[]`},
		"another gateway":                 {cluster.ConfigFor("system:node:other", "system:nodes"), one + api.PathObjects, 403, "may not get"},
		"a service account's token":       {token, api.PathNodes, 200, w.node},
		"a service account, the objects":  {token, one + api.PathObjects, 403, "may not get nodes/sync"},
		"an administrator, another path":  {cluster.Config(), "/metrics", 404, ""},
		"an administrator, an odd object": {cluster.Config(), one + "/proxy", 404, ""},
	} {
		t.Run(name, func(t *testing.T) {
			kit.Succeeds(t, 30*time.Second, func() error { // the apiserver's authorizer learns of a new role by its own watch
				code, body := requestAs(t, tt.user, server, authority, tt.path)
				if code != tt.code || !strings.Contains(body, tt.says) {
					return &unexpectedReply{code, body}
				}
				return nil
			})
		})
	}
}

type unexpectedReply struct {
	code int
	body string
}

func (u *unexpectedReply) Error() string { return http.StatusText(u.code) + ": " + u.body }

// createToken returns a token of a service account that may list nodes.
func (w *inspectFixture) createToken() string {
	w.Helper()
	kube := sharedCluster.Cluster(w).Client(w)
	account, err := kube.CoreV1().ServiceAccounts(w.node).Create(w.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "watcher"}}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	name := "frond-inspect-watcher-" + w.node
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list"}}}}
	if _, err := kube.RbacV1().ClusterRoles().Create(w.Context(), role, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: w.node, Name: account.Name}},
	}
	if _, err := kube.RbacV1().ClusterRoleBindings().Create(w.Context(), binding, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	request, err := kube.CoreV1().ServiceAccounts(w.node).CreateToken(w.Context(), account.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return request.Status.Token
}
