package localapi_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/test/kit/kubetest"
)

// apiRequest is one HTTP request; NS in it stands for the namespace of the run.
type apiRequest struct{ method, path, accept, contentType, body string }

const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io"

// apiRequests returns the requests that are sent to a real kube-apiserver and to the gateway: the answers must be the same,
// up to versions and ages.
func apiRequests() map[string]apiRequest {
	get := func(path string) apiRequest { return apiRequest{method: "GET", path: path} }
	table := func(path string) apiRequest { return apiRequest{method: "GET", path: path, accept: asTable} }
	patch := func(kind, path, body string) apiRequest {
		return apiRequest{method: "PATCH", path: path, contentType: "application/" + kind + "+json", body: body}
	}
	const ns = "/api/v1/namespaces/NS/"
	return map[string]apiRequest{
		"a pod":                            get(ns + "pods/web"),
		"a pod's status":                   get(ns + "pods/web/status"),
		"pods":                             get(ns + "pods"),
		"pods as a table":                  table(ns + "pods"),
		"one pod as a table":               table(ns + "pods/web"),
		"a table with objects":             table(ns + "pods?includeObject=Object"),
		"a table without objects":          table(ns + "pods?includeObject=None"),
		"config maps as a table":           table(ns + "configmaps?fieldSelector=metadata.name%3Dconf"),
		"secrets as a table":               table(ns + "secrets?fieldSelector=metadata.name%3Dsec"),
		"services as a table":              table(ns + "services"),
		"nodes as a table":                 table("/api/v1/nodes?fieldSelector=metadata.name%3Dedge-1"),
		"metadata only":                    {method: "GET", path: ns + "pods/web", accept: "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"},
		"metadata only, list":              {method: "GET", path: ns + "pods", accept: "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"},
		"config maps of a name anywhere":   get("/api/v1/configmaps?fieldSelector=metadata.name%3Dconf"),
		"config maps of a full name":       get("/api/v1/configmaps?fieldSelector=metadata.name%3Dconf,metadata.namespace%3DNS"),
		"pods by phase":                    get(ns + "pods?fieldSelector=status.phase%3DRunning"),
		"pods not of a phase":              get(ns + "pods?fieldSelector=status.phase%21%3DRunning"),
		"pods of the node":                 get("/api/v1/pods?fieldSelector=spec.nodeName%3Dedge-1"),
		"pods by label":                    get(ns + "pods?labelSelector=app%3Dweb"),
		"pods by a label's absence":        get(ns + "pods?labelSelector=%21app"),
		"services that have an address":    get(ns + "services?fieldSelector=spec.clusterIP%21%3DNone"),
		"no such pod":                      get(ns + "pods/none"),
		"unknown field label":              get(ns + "pods?fieldSelector=spec.nothing%3Da"),
		"broken field selector":            get(ns + "pods?fieldSelector=a"),
		"broken label selector":            get(ns + "pods?labelSelector=a%20b%20c"),
		"a watch of the present":           get(ns + "pods?watch=1&resourceVersion=0&timeoutSeconds=1"),
		"a watch with initial events":      get(ns + "pods?watch=1&allowWatchBookmarks=1&sendInitialEvents=1&resourceVersionMatch=NotOlderThan&timeoutSeconds=1"),
		"a watch of one name":              get(ns + "configmaps?watch=1&fieldSelector=metadata.name%3Dconf&timeoutSeconds=1"),
		"a watch of one name in the path":  get("/api/v1/watch/namespaces/NS/configmaps/conf?timeoutSeconds=1"),
		"a watch of a table":               table(ns + "pods?watch=1&timeoutSeconds=1"),
		"broken version":                   get(ns + "pods?resourceVersion=x"),
		"watch that forgot the match":      get(ns + "pods?watch=1&sendInitialEvents=true"),
		"list that sends initial events":   get(ns + "pods?sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
		"exact match of nothing":           get(ns + "pods?resourceVersionMatch=Exact"),
		"not acceptable":                   {method: "GET", path: ns + "pods/web", accept: "application/x-none"},
		"yaml":                             {method: "GET", path: ns + "pods/web", accept: "application/yaml"},
		"the wrong method":                 {method: "PUT", path: ns + "pods", body: "{}"},
		"a patch that is no patch":         patch("strategic-merge-patch", ns+"pods/web/status", `[1]`),
		"a patch of an unknown type":       patch("magic", ns+"pods/web/status", `{}`),
		"a patch of nobody":                patch("merge-patch", ns+"pods/none/status", `{}`),
		"a JSON patch whose test fails":    patch("json-patch", ns+"pods/web/status", `[{"op":"test","path":"/status/phase","value":"x"}]`),
		"a JSON patch of a missing path":   patch("json-patch", ns+"pods/web/status", `[{"op":"remove","path":"/status/nothing"}]`),
		"a patch of the wrong kind":        patch("merge-patch", ns+"pods/web/status", `{"status":7}`),
		"a patch with an unknown field":    patch("merge-patch", ns+"pods/web/status?fieldValidation=Strict", `{"status":{"wrong":1}}`),
		"a patch of an old version":        patch("merge-patch", ns+"pods/web/status", `{"metadata":{"resourceVersion":"1"},"status":{"message":"m"}}`),
		"a patch of another UID":           patch("merge-patch", ns+"pods/web/status", `{"metadata":{"uid":"other"},"status":{"message":"m"}}`),
		"a patch that changes the name":    patch("merge-patch", ns+"pods/web/status", `{"metadata":{"name":"other"}}`),
		"an update of another object":      {method: "PUT", path: ns + "pods/web/status", contentType: "application/json", body: `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"other"}}`},
		"an update of another kind":        {method: "PUT", path: ns + "pods/web/status", contentType: "application/json", body: `{"apiVersion":"v1","kind":"Node","metadata":{"name":"web"}}`},
		"an update that is no JSON":        {method: "PUT", path: ns + "pods/web/status", contentType: "application/json", body: `{`},
		"a deletion with a wrong UID":      {method: "DELETE", path: ns + "pods/web", contentType: "application/json", body: `{"gracePeriodSeconds":0,"preconditions":{"uid":"other"}}`},
		"a deletion of nobody":             {method: "DELETE", path: ns + "pods/none", contentType: "application/json", body: `{"gracePeriodSeconds":0}`},
		"a dry deletion":                   {method: "DELETE", path: ns + "pods/web", contentType: "application/json", body: `{"gracePeriodSeconds":0,"dryRun":["All"]}`},
		"a strategic patch of a condition": patch("strategic-merge-patch", ns+"pods/web/status", `{"status":{"conditions":[{"type":"Ready","status":"False","reason":"Why"}]}}`),
		"a strategic patch with an order":  patch("strategic-merge-patch", ns+"pods/web/status", `{"status":{"$setElementOrder/conditions":[{"type":"Initialized"},{"type":"Ready"}],"conditions":[{"type":"Initialized","status":"True"}]}}`),
	}
}

func TestServer_AnswersLikeAPIServer(t *testing.T) {
	shared := kubetest.Shared{}
	t.Cleanup(shared.Cleanup)
	apiserver := shared.Cluster(t)
	g := newGateway(t, true)
	ns := createObjects(t, apiserver.Client(t), apiserver.Namespace(t), g)
	for name, q := range apiRequests() {
		t.Run(name, func(t *testing.T) {
			q.path = strings.ReplaceAll(q.path, "NS", ns)
			wantCode, want := sendAPIRequest(t, apiserver.Config(), q)
			gotCode, got := sendAPIRequest(t, g.api.ClientConfig(), q)
			if gotCode != wantCode {
				t.Errorf("code %d, want %d\n%v\n%v", gotCode, wantCode, got, want)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("answer (-apiserver +gateway):\n%s", diff)
			}
		})
	}
}

// createObjects creates objects in the cluster and delivers them to the gateway unchanged.
func createObjects(t *testing.T, c kubernetes.Interface, ns string, g *gateway) string {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	core := c.CoreV1()
	_, err := core.ServiceAccounts(ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	must(err)
	cm := newConfigMap("conf", "1")
	cm.ObjectMeta = metav1.ObjectMeta{Name: "conf"}
	cm, err = core.ConfigMaps(ns).Create(t.Context(), cm, metav1.CreateOptions{})
	must(err)
	secret, err := core.Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "sec"}, Data: map[string][]byte{"a": nil, "b": nil}}, metav1.CreateOptions{})
	must(err)
	svc, err := core.Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "svc"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"a": "b", "c": "d"},
			Ports: []corev1.ServicePort{{Name: "x", Port: 80}, {Name: "y", Port: 53, Protocol: corev1.ProtocolUDP}},
		},
	}, metav1.CreateOptions{})
	must(err)
	headless, err := core.Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "headless"}, Spec: corev1.ServiceSpec{ClusterIP: "None"},
	}, metav1.CreateOptions{})
	must(err)
	n := newNode()
	n.Labels["node-role.kubernetes.io/edge"] = ""
	n.Spec.Unschedulable = true
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.7"}}
	n, err = core.Nodes().Create(t.Context(), n, metav1.CreateOptions{})
	must(err)
	objects := []metav1.Object{cm, secret, svc, headless, n}
	for name, status := range map[string]corev1.PodStatus{
		"web": {
			Phase: corev1.PodRunning, PodIP: "10.1.0.1", PodIPs: []corev1.PodIP{{IP: "10.1.0.1"}}, HostIP: "10.0.0.7", HostIPs: []corev1.HostIP{{IP: "10.0.0.7"}},
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Ready: true, RestartCount: 2, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
		},
		"done":  {Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}}}}},
		"fresh": {Phase: corev1.PodPending},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}, Spec: newPod(name, "", "").Spec}
		if name == "fresh" {
			p.Labels = nil
		}
		_, err = core.Pods(ns).Create(t.Context(), p, metav1.CreateOptions{})
		must(err)
		data, err := json.Marshal(map[string]any{"status": status})
		must(err)
		p, err = core.Pods(ns).Patch(t.Context(), name, types.MergePatchType, data, metav1.PatchOptions{}, "status")
		must(err)
		objects = append(objects, p)
	}
	for _, o := range objects {
		o.SetManagedFields(nil)
	}
	g.deliverObjects(objects...)
	return ns
}

// sendAPIRequest returns the code and the scrubbed answer.
func sendAPIRequest(t *testing.T, cfg *rest.Config, q apiRequest) (int, any) {
	t.Helper()
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), q.method, cfg.Host+q.path, bytes.NewReader([]byte(q.body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", q.contentType)
	req.Header.Set("Accept", q.accept)
	r, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	var answers []any // more than one for a watch
	for d := json.NewDecoder(bytes.NewReader(body)); ; {
		var v any
		if err := d.Decode(&v); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return r.StatusCode, r.Header.Get("Content-Type") // YAML: that it is YAML is enough
		}
		answers = append(answers, scrubAnswer(v))
	}
	// The initial events of a watch have no order.
	slices.SortFunc(answers, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return r.StatusCode, answers
}

// scrubAnswer removes the parts that may differ: versions, field managers, the text of errors, the words of documentation, ages.
func scrubAnswer(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = scrubAnswer(v[i])
		}
		return v
	case map[string]any:
		if v["kind"] == "Status" {
			return fmt.Sprint("Status ", v["code"], " ", v["reason"])
		}
		delete(v, "resourceVersion")
		delete(v, "managedFields")
		delete(v, "deletionTimestamp")
		if _, column := v["priority"]; column {
			delete(v, "description")
		}
		if cells, ok := v["cells"].([]any); ok {
			for i, c := range cells {
				if s := fmt.Sprint(c); strings.HasSuffix(s, "s") && strings.Trim(s, "0123456789s") == "" {
					cells[i] = "AGE"
				}
			}
		}
		for k := range v {
			v[k] = scrubAnswer(v[k])
		}
	}
	return v
}
