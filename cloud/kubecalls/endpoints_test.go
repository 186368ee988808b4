package kubecalls

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	authenticationv1 "k8s.io/api/authentication/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
)

func TestTargetsEndpoints(t *testing.T) {
	for path, want := range map[string]bool{
		"/api/v1/endpoints": true, "/api/v1/namespaces/n/endpoints": true, "/api/v1/namespaces/n/endpoints/x": true,
		"/apis/discovery.k8s.io/v1/endpointslices": true, "/apis/discovery.k8s.io/v1beta1/namespaces/n/endpointslices/x": true,
		"/api/v1/namespaces/endpoints": false, "/api/v1/namespaces/n/services/endpoints": false, "/apis/example.com/v1/endpoints": false,
		"/apis/discovery.k8s.io/v1": false, "/api/v1": false, "/version": false,
	} {
		if got := targetsEndpoints(wire.KubeRequest{Path: path}); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

// TestKubeCalls_EndpointsAreCut: a program at a node whose token may read all endpoints gets its node's part of them, whatever it asks for:
// one, a list, another format, a change of nothing. A watch is refused. While the part is not known it gets nothing.
func TestKubeCalls_EndpointsAreCut(t *testing.T) {
	c := newCallFixture(t)
	var unknown error
	cut := func(node string, o *unstructured.Unstructured) (client.Object, error) {
		if unknown != nil {
			return nil, unknown
		}
		if node != "a" || o.GetKind() != "EndpointSlice" || o.GetNamespace() != c.ns || !strings.HasPrefix(o.GetName(), "web-") {
			t.Errorf("asked for %s %s/%s at %s", o.GetKind(), o.GetNamespace(), o.GetName(), node)
		}
		part := o.DeepCopy()
		part.Object["endpoints"] = []any{}
		return part, nil
	}
	calls, err := New(c.cluster.Config(), false, c.newGuard(), cut, prometheus.NewRegistry(), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	c.createPod("reads", "reads")
	c.grantAccess("slices", "reads", discoveryv1.GroupName, "endpointslices")
	token, err := c.kube.CoreV1().ServiceAccounts(c.ns).CreateToken(t.Context(), "reads", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const secret = "10.9.8.7"
	for _, name := range []string{"web-1", "web-2"} {
		_, err := c.kube.DiscoveryV1().EndpointSlices(c.ns).Create(t.Context(), &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name}, AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{secret}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	path := "/apis/discovery.k8s.io/v1/namespaces/" + c.ns + "/endpointslices"
	ask := func(to func(*wire.KubeRequest)) wire.KubeReply {
		t.Helper()
		req := wire.KubeRequest{Method: http.MethodGet, Path: path, Token: token.Status.Token}
		to(&req)
		data, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		reply, err := calls.Handle(t.Context(), "a", data)
		if req.Wait > 0 {
			reply, err = calls.Watch(t.Context(), "a", data)
		}
		if err != nil {
			t.Fatal(err)
		}
		return reply.(wire.KubeReply)
	}
	for what, to := range map[string]func(*wire.KubeRequest){
		"a list":          func(*wire.KubeRequest) {},
		"one":             func(r *wire.KubeRequest) { r.Path += "/web-1" },
		"as protobuf":     func(r *wire.KubeRequest) { r.Accept = "application/vnd.kubernetes.protobuf" },
		"as a table":      func(r *wire.KubeRequest) { r.Accept = "application/json;as=Table;g=meta.k8s.io;v=v1" },
		"with a selector": func(r *wire.KubeRequest) { r.Query = "fieldSelector=metadata.name%3Dweb-2" },
	} {
		reply := ask(to)
		if reply.Code != http.StatusOK || strings.Contains(string(reply.Body), secret) || !strings.Contains(string(reply.Body), `"web-`) {
			t.Errorf("%s: %d %s %s", what, reply.Code, reply.Error, reply.Body)
		}
	}
	if reply := ask(func(r *wire.KubeRequest) { r.Path += "/web-9" }); reply.Code != http.StatusNotFound {
		t.Errorf("none: %d", reply.Code)
	}
	if reply := ask(func(r *wire.KubeRequest) { r.Method, r.Path, r.Body = http.MethodPut, r.Path+"/web-1", []byte("{}") }); reply.Code != http.StatusForbidden || !strings.Contains(string(reply.Body), "by a patch") {
		t.Errorf("a share written back: %d %s", reply.Code, reply.Body)
	}
	if reply := ask(func(r *wire.KubeRequest) { r.Token = "" }); reply.Code != http.StatusForbidden {
		t.Errorf("as the node: %d", reply.Code)
	}
	if reply := ask(func(r *wire.KubeRequest) { r.Wait, r.Query = 1000, "resourceVersion=0" }); reply.Code != http.StatusBadRequest || strings.Contains(string(reply.Body), secret) {
		t.Errorf("a watch: %d %s", reply.Code, reply.Body)
	}
	unknown = errors.New("not known yet")
	if reply := ask(func(*wire.KubeRequest) {}); reply.Code != http.StatusServiceUnavailable || strings.Contains(string(reply.Body), secret) {
		t.Errorf("not known: %d %s", reply.Code, reply.Body)
	}
}
