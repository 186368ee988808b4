package kubecalls

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
)

func TestNamespaceGuard_RefusesAndNarrows(t *testing.T) {
	var events []string
	guard := &NamespaceGuard{
		protected: controllers.ProtectNamespaces("frond-system", "vault"),
		namespaced: func(r schema.GroupVersionResource) (bool, error) {
			return r.Resource != "nodes" && r.Resource != "namespaces", nil
		},
		events: NewWithheldEvents(func(node, _, message string) { events = append(events, node+": "+message) }),
	}
	const without = "metadata.namespace!=frond-system,metadata.namespace!=vault"
	for name, tt := range map[string]struct {
		method, path, query string
		token               string
		refused             bool
		selector            string // of the request that may be made
	}{
		"a Secret":                 {path: "/api/v1/namespaces/frond-system/secrets/x", refused: true},
		"a Secret by a token":      {path: "/api/v1/namespaces/frond-system/secrets/x", token: "t", refused: true},
		"of the configured one":    {path: "/api/v1/namespaces/vault/secrets", refused: true},
		"of another group":         {path: "/apis/apps/v1/namespaces/frond-system/deployments/x/scale", refused: true},
		"a token":                  {method: "POST", path: "/api/v1/namespaces/frond-system/serviceaccounts/x/token", refused: true},
		"a subresource of it":      {method: "PUT", path: "/api/v1/namespaces/frond-system/finalize", refused: true},
		"the Namespace":            {path: "/api/v1/namespaces/frond-system"},
		"another namespace":        {path: "/api/v1/namespaces/frond-systems/secrets/x", query: "fieldSelector=a%3Db", selector: "a=b"},
		"an object of that name":   {path: "/api/v1/nodes/frond-system"},
		"a list of all namespaces": {path: "/api/v1/secrets", selector: without},
		"a list with a selector":   {path: "/apis/apps/v1/deployments", query: "fieldSelector=metadata.name%3Dx&limit=5", selector: "metadata.name=x," + without},
		"a list of what has none":  {path: "/api/v1/nodes"},
		"a list of namespaces":     {path: "/api/v1/namespaces"},
		"two selectors":            {path: "/api/v1/secrets", query: "fieldSelector=a%3Db&fieldSelector=", refused: true},
		"a selector that is none":  {path: "/api/v1/secrets", query: "fieldSelector=x", refused: true},
		"what the API has":         {path: "/apis/apps/v1"},
		"a review":                 {method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"},
		"its own Node":             {method: "POST", path: "/api/v1/nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.method == "" {
				tt.method = http.MethodGet
			}
			req, err := guard.restrictRequest("gw-1", wire.KubeRequest{Method: tt.method, Path: tt.path, Query: tt.query, Token: tt.token})
			if (err != nil) != tt.refused {
				t.Fatalf("error %v", err)
			}
			if err != nil {
				if reply := refusalReply(err); reply.Code/100 != 4 {
					t.Errorf("answer %+v", reply)
				}
				return
			}
			query, err := url.ParseQuery(req.Query)
			if err != nil || query.Get("fieldSelector") != tt.selector || strings.Contains(tt.query, "limit") != query.Has("limit") {
				t.Errorf("query %q, %v", req.Query, err)
			}
		})
	}
	// One event for each namespace, however many requests there are.
	slices.Sort(events)
	if len(events) != 2 || !strings.Contains(events[0]+events[1], "namespace vault is protected") || !strings.Contains(events[0]+events[1], "namespace frond-system is protected") {
		t.Errorf("events %q", events)
	}
	guard.namespaced = func(schema.GroupVersionResource) (bool, error) { return false, errors.New("no answer") }
	if _, err := guard.restrictRequest("gw-1", wire.KubeRequest{Method: http.MethodGet, Path: "/api/v1/secrets"}); err == nil || refusalReply(err).Error == "" {
		t.Errorf("a list of what may be protected, while nobody can say: %v", err)
	}
}

// TestKubeCalls_LeaveProtectedNamespacesOut sends requests to a real apiserver: its lists and tables lack the objects
// of a protected namespace; cluster-scoped objects and custom kinds are listed as before.
func TestKubeCalls_LeaveProtectedNamespacesOut(t *testing.T) {
	c := newCallFixture(t)
	other := c.cluster.Namespace(t)
	calls, err := New(c.cluster.Config(), false, c.newGuard(c.ns), nil, prometheus.NewRegistry(), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	calls.client, err = rest.HTTPClientFor(c.cluster.Config()) // an admin in the node's place sees all objects
	if err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{c.ns, other} {
		if _, err := c.kube.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.createWidget("w")
	ask := func(path, accept string) wire.KubeReply {
		t.Helper()
		request, err := json.Marshal(wire.KubeRequest{Method: http.MethodGet, Path: path, Accept: accept})
		if err != nil {
			t.Fatal(err)
		}
		reply, err := calls.Handle(t.Context(), "a", request)
		if err != nil {
			t.Fatal(err)
		}
		return reply.(wire.KubeReply)
	}
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io"
	for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf", table} {
		if reply := ask("/api/v1/secrets", accept); reply.Code != http.StatusOK || strings.Contains(string(reply.Body), c.ns) || !strings.Contains(string(reply.Body), other) {
			t.Errorf("%s: %d %.500s", accept, reply.Code, reply.Body)
		}
	}
	if reply := ask("/apis/frond.test/v1/widgets", "application/json"); reply.Code != http.StatusOK || strings.Contains(string(reply.Body), c.ns) {
		t.Errorf("widgets: %d %.300s", reply.Code, reply.Body)
	}
	if reply := ask("/api/v1/nodes", "application/json"); reply.Code != http.StatusOK {
		t.Errorf("nodes: %d %.300s", reply.Code, reply.Body)
	}
	var status metav1.Status
	if reply := ask("/api/v1/namespaces/"+c.ns+"/secrets/s", ""); json.Unmarshal(reply.Body, &status) != nil || !apierrors.IsForbidden(&apierrors.StatusError{ErrStatus: status}) {
		t.Errorf("the Secret: %d %.300s", reply.Code, reply.Body)
	}
}
