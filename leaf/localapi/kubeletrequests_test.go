package localapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/kubeletrequests"
)

// readKubeletRequests reads the list of requests in the kubelet's code, without its second part: code that no kubelet runs.
func readKubeletRequests(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("../../edged/kubelet/testdata/kubelet-requests.txt")
	if err != nil {
		t.Fatal(err)
	}
	asked, _, _ := strings.Cut(string(data), "\n\n")
	var lines []string
	for _, line := range strings.Split(asked, "\n")[1:] {
		request, _, _ := strings.Cut(line, "  (")
		lines = append(lines, request)
	}
	return lines
}

func TestKubeletRequests_CoverKubelet(t *testing.T) {
	var treated []string
	for _, row := range kubeletrequests.KubeletRequests() {
		treated = append(treated, row.Requests()...)
		if row.Note == "" {
			t.Errorf("%v: no note", row.Requests())
		}
	}
	slices.Sort(treated)
	asked := readKubeletRequests(t)
	slices.Sort(asked)
	if diff := cmp.Diff(asked, treated); diff != "" {
		t.Errorf("requests (-the kubelet's +the table's):\n%s", diff)
	}
}

// TestKubeletRequests_AreHandledAsStated sends each request of the table to a real server.
func TestKubeletRequests_AreHandledAsStated(t *testing.T) {
	g := newGateway(t, true)
	for _, row := range kubeletrequests.KubeletRequests() {
		for i, verb := range row.Verbs {
			t.Run(row.Requests()[i], func(t *testing.T) {
				try := newRequestTrial(t, g, row, verb)
				switch row.Treatment {
				case kubeletrequests.Delivered:
					try.checkDelivered()
				case kubeletrequests.Local:
					try.checkLocal()
				case kubeletrequests.Relayed:
					try.checkRelayed()
				case kubeletrequests.Refused:
					try.checkRefused()
				default:
					t.Errorf("no treatment: %q", row.Treatment)
				}
			})
		}
	}
}

// requestTrial is one request to a gateway.
type requestTrial struct {
	*testing.T
	g         *gateway
	verb      string
	key       wire.Key
	kind, api string
	sub       string
	object    map[string]any
}

// kindNames are the kinds whose objects are created here; a review has none.
var kindNames = map[string]string{
	"pods": "Pod", "nodes": "Node", "configmaps": "ConfigMap", "secrets": "Secret", "serviceaccounts": "ServiceAccount",
	"persistentvolumeclaims": "PersistentVolumeClaim", "persistentvolumes": "PersistentVolume", "services": "Service", "events": "Event",
	"leases": "Lease", "endpointslices": "EndpointSlice", "runtimeclasses": "RuntimeClass", "csidrivers": "CSIDriver", "csinodes": "CSINode",
	"volumeattachments": "VolumeAttachment", "clustertrustbundles": "ClusterTrustBundle", "podcertificaterequests": "PodCertificateRequest",
	"certificatesigningrequests": "CertificateSigningRequest", "resourceclaims": "ResourceClaim", "resourceslices": "ResourceSlice",
	"tokenreviews": "TokenReview", "subjectaccessreviews": "SubjectAccessReview",
}

func newRequestTrial(t *testing.T, g *gateway, row kubeletrequests.KubeletRequest, verb string) *requestTrial {
	t.Helper()
	resource, sub, _ := strings.Cut(row.Resource, "/")
	api := row.API
	if api == "any version" {
		api = map[string]string{"tokenreviews": "authentication.k8s.io/v1", "subjectaccessreviews": "authorization.k8s.io/v1"}[resource]
	}
	if verb == "create" && row.Treatment == kubeletrequests.Local {
		g = newGateway(t, true) // nothing is registered there
	}
	group, _, grouped := strings.Cut(api, "/")
	if !grouped {
		group = ""
	}
	key := wire.Key{Group: group, Resource: resource, Name: fmt.Sprintf("try-%s-%d", verb, g.seq)}
	switch resource {
	case "nodes", "csinodes":
		key.Name = gatewayNode
	case "runtimeclasses", "csidrivers", "persistentvolumes", "volumeattachments", "clustertrustbundles", "certificatesigningrequests", "resourceslices",
		"tokenreviews", "subjectaccessreviews":
	default:
		key.Namespace = "default"
	}
	object := map[string]any{
		"apiVersion": api, "kind": kindNames[resource],
		"metadata": map[string]any{
			"name": key.Name, "namespace": key.Namespace, "uid": "uid-" + key.Name, "resourceVersion": "7", "labels": map[string]any{"try": key.Name},
		},
		"spec": map[string]any{"nodeName": gatewayNode},
	}
	switch resource {
	case "configmaps", "secrets", "serviceaccounts", "events", "endpointslices", "runtimeclasses":
		delete(object, "spec")
	case "csinodes":
		object["spec"] = map[string]any{"drivers": []any{}}
	}
	return &requestTrial{T: t, g: g, verb: verb, key: key, kind: kindNames[resource], api: api, sub: sub, object: object}
}

func (x *requestTrial) collectionPath() string {
	path := "/apis/" + x.api
	if x.key.Group == "" {
		path = "/api/" + x.api
	}
	if x.key.Namespace != "" {
		path += "/namespaces/" + x.key.Namespace
	}
	return path + "/" + x.key.Resource
}

func (x *requestTrial) itemPath() string {
	path := x.collectionPath() + "/" + x.key.Name
	if x.sub != "" {
		path += "/" + x.sub
	}
	return path
}

// buildRequest builds the trial's request.
func (x *requestTrial) buildRequest() (method, path string, body []byte) {
	x.Helper()
	data, err := json.Marshal(x.object)
	if err != nil {
		x.Fatal(err)
	}
	switch x.verb {
	case "get":
		return http.MethodGet, x.itemPath(), nil
	case "list":
		return http.MethodGet, x.collectionPath(), nil
	case "watch":
		selector := "labelSelector=try%3D" + x.key.Name
		switch x.key.Resource {
		case "configmaps", "secrets", "certificatesigningrequests": // watched by name
			selector = "fieldSelector=metadata.name%3D" + x.key.Name
		case "podcertificaterequests":
			selector += "&fieldSelector=spec.nodeName%3D" + gatewayNode
		}
		return http.MethodGet, x.collectionPath() + "?watch=true&" + selector, nil
	case "create", "post":
		if x.sub != "" {
			return http.MethodPost, x.itemPath(), []byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":[]}}`)
		}
		return http.MethodPost, x.collectionPath(), data
	case "update":
		return http.MethodPut, x.itemPath(), data
	case "patch":
		return http.MethodPatch, x.itemPath(), []byte(`{"metadata":{"annotations":{"tried":"` + time.Now().String() + `"}}}`)
	case "delete":
		return http.MethodDelete, x.itemPath(), []byte(`{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0}`)
	case "deletecollection":
		return http.MethodDelete, x.collectionPath() + "?fieldSelector=spec.nodeName%3D" + gatewayNode, nil
	}
	x.Fatalf("no request for %q", x.verb)
	return "", "", nil
}

// send makes a request in memory, as the kubelet does, and returns the code and the first part of the answer.
func (x *requestTrial) send(method, path string, body []byte) (code int, answer string) {
	x.Helper()
	ctx, cancel := context.WithTimeout(x.Context(), 20*time.Second)
	defer cancel()
	cfg := x.g.api.ClientConfig()
	req, err := http.NewRequestWithContext(ctx, method, cfg.Host+path, bytes.NewReader(body))
	if err != nil {
		x.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := cfg.Transport.RoundTrip(req)
	if err != nil {
		x.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var first json.RawMessage // the first event of a watch
	if err := json.NewDecoder(resp.Body).Decode(&first); err != nil {
		x.Fatalf("%s %s: %d, %v", method, path, resp.StatusCode, err)
	}
	return resp.StatusCode, string(first)
}

// deliverObject simulates the delivery of an object.
func (x *requestTrial) deliverObject(key wire.Key, object any) {
	x.Helper()
	data, err := json.Marshal(object)
	if err != nil {
		x.Fatal(err)
	}
	x.g.seq++
	m := wire.Message{Node: gatewayNode, Key: key, Op: wire.Apply, UID: "uid-" + key.Name, Version: "7", ClusterEpoch: "cluster-1", Sequence: x.g.seq, Object: data}
	if err := x.g.store.Apply(x.Context(), []wire.Message{m}, x.g.seq); err != nil {
		x.Fatal(err)
	}
}

// setDeliveredKind simulates the cloud's announcement of an optional kind.
func (x *requestTrial) setDeliveredKind(k wire.DeliveredKind) {
	x.Helper()
	x.deliverObject(wire.DeliveredKindsKey(), wire.NewDeliveredKinds([]wire.DeliveredKind{k}))
}

func isOptional(resource string) bool {
	return slices.Contains([]string{"clustertrustbundles", "podcertificaterequests", "resourceclaims", "resourceslices"}, resource)
}

// checkDelivered: stored objects are served without a link, and an object that is not stored is never reported as absent.
func (x *requestTrial) checkDelivered() {
	x.g.cloud.goOffline()
	method, path, _ := x.buildRequest()
	missing := &requestTrial{T: x.T, g: x.g, verb: "get", key: x.key, api: x.api}
	if missing.key.Name += "-never"; x.key.Resource != "pods" && x.verb == "get" {
		if code, answer := x.send(http.MethodGet, missing.itemPath(), nil); code != http.StatusServiceUnavailable {
			x.Errorf("what is not held: %d %s", code, answer)
		}
	}
	if isOptional(x.key.Resource) && x.verb != "get" {
		x.checkUnproven(path)
		_, version, _ := strings.Cut(x.api, "/")
		x.setDeliveredKind(wire.DeliveredKind{Group: x.key.Group, Resource: x.key.Resource, Version: version})
	}
	x.deliverObject(x.key, x.object)
	code, answer := x.send(method, path, nil)
	if code != http.StatusOK || !strings.Contains(answer, `"uid":"uid-`+x.key.Name) {
		x.Errorf("%s %s: %d %s", method, path, code, answer)
	}
}

// checkUnproven: a list of an optional kind needs the cloud's announcement.
func (x *requestTrial) checkUnproven(path string) {
	for want, kinds := range map[int][]wire.DeliveredKind{
		http.StatusServiceUnavailable: {
			{Group: x.key.Group, Resource: "another", Version: "v1"},
			{Group: x.key.Group, Resource: x.key.Resource, Absence: wire.KindForbidden},
		},
		http.StatusNotFound: {{Group: x.key.Group, Resource: x.key.Resource, Absence: wire.KindNotServed}},
	} {
		for _, k := range kinds {
			x.setDeliveredKind(k)
			if code, answer := x.send(http.MethodGet, path, nil); code != want {
				x.Errorf("after %+v: %d %s, want %d", k, code, answer, want)
			}
		}
	}
}

// checkLocal: a request succeeds without a link.
func (x *requestTrial) checkLocal() {
	x.g.cloud.goOffline()
	if x.verb != "create" {
		x.prepareLocal()
	}
	method, path, body := x.buildRequest()
	if x.kind == "" {
		method, path, body = http.MethodGet, "/apis/certificates.k8s.io/v1", nil
	}
	if code, answer := x.send(method, path, body); code/100 != 2 {
		x.Errorf("%s %s: %d %s", method, path, code, answer)
	}
}

// prepareLocal creates or delivers the object of a local request, if it needs one.
func (x *requestTrial) prepareLocal() {
	switch x.key.Resource {
	case "leases", "events":
		made := &unstructured.Unstructured{Object: x.object}
		made = made.DeepCopy()
		made.SetUID("")
		made.SetResourceVersion("")
		data, err := made.MarshalJSON()
		if err != nil {
			x.Fatal(err)
		}
		if code, answer := x.send(http.MethodPost, x.collectionPath(), data); code != http.StatusCreated {
			x.Fatalf("create: %d %s", code, answer)
		}
		delete(x.object["metadata"].(map[string]any), "uid")
		delete(x.object["metadata"].(map[string]any), "resourceVersion")
	case "":
	default:
		x.deliverObject(x.key, x.object)
		delete(x.object["metadata"].(map[string]any), "resourceVersion")
	}
}

// checkRelayed: without a link nothing happens. With a link the cloud gets the request unchanged and its answer is returned.
func (x *requestTrial) checkRelayed() {
	x.g.cloud.goOffline()
	method, path, body := x.buildRequest()
	review := strings.HasSuffix(x.key.Resource, "reviews")
	if x.verb != "watch" && !review {
		if code, answer := x.send(method, path, body); code != http.StatusServiceUnavailable {
			x.Errorf("without a link: %d %s", code, answer)
		}
	}
	var got string
	x.g.cloud.goOnline(func(w http.ResponseWriter, r *http.Request) {
		got = r.Method + " " + r.URL.RequestURI()
		writeAnswer(w, http.StatusOK, map[string]any{
			"apiVersion": x.api, "kind": x.kind, "metadata": map[string]any{"name": x.key.Name, "uid": "the-cloud's", "resourceVersion": "9"},
		})
	})
	defer x.g.cloud.goOffline()
	code, answered := x.send(method, path, body)
	want := method + " " + path
	if x.verb == "watch" {
		want = "GET " + x.itemPath()
	}
	if code != http.StatusOK || got != want || !strings.Contains(answered, "the-cloud's") {
		x.Errorf("%d %s; the cloud was asked %q, want %q", code, answered, got, want)
	}
}

// checkRefused: a status gives the reason, and the cloud is not asked.
func (x *requestTrial) checkRefused() {
	asked := len(x.g.cloud.requestsSeen())
	x.g.cloud.goOnline(func(http.ResponseWriter, *http.Request) {})
	defer x.g.cloud.goOffline()
	method, path, body := x.buildRequest()
	code, answer := x.send(method, path, body)
	if code/100 != 4 || !strings.Contains(answer, `"message":"`) || len(x.g.cloud.requestsSeen()) != asked {
		x.Errorf("%d %s", code, answer)
	}
}

var updatePage = flag.Bool("update", false, "write the page of kubelet requests anew")

// kubeletPage is the documentation page with the table.
const kubeletPage = "../../docs/operations/kubelet-api.md"

// TestKubeletRequests_PageMatchesTable checks that the page's lines between its markers match the table.
func TestKubeletRequests_PageMatchesTable(t *testing.T) {
	data, err := os.ReadFile(kubeletPage)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "| API | resource | verbs | treatment | |\n|---|---|---|---|---|\n", "\n<!-- end of the table -->"
	before, rest, found := strings.Cut(string(data), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatal("the page has no table")
	}
	var rows []string
	for _, row := range kubeletrequests.KubeletRequests() {
		rows = append(rows, fmt.Sprintf("| %s | %s | %s | %s | %s |", row.API, row.Resource, strings.Join(row.Verbs, ", "), row.Treatment, row.Note))
	}
	want := before + begin + strings.Join(rows, "\n") + "\n" + end + after
	if *updatePage {
		if err := os.WriteFile(kubeletPage, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(data) != want {
		t.Error("the page's table is not the code's: run with -update")
	}
}
