package attacks_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
)

// The API paths of kinds of which a node may read and write only its own objects.
const (
	claimsPath   = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
	slicesPath   = "/apis/resource.k8s.io/v1/resourceslices"
	podCertsPath = "/apis/certificates.k8s.io/v1/namespaces/default/podcertificaterequests"
	ofVictim     = "fieldSelector=spec.nodeName%3D" + victim
)

// createDevices creates a claim and a slice of devices of the victim, and removes them with the test.
func createDevices(t *testing.T) {
	t.Helper()
	manifest := strings.ReplaceAll(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: of-VICTIM, namespace: default}
spec: {devices: {requests: [{name: one, exactly: {deviceClassName: attacked.test}}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: of-VICTIM}
spec: {driver: attacked.test, nodeName: VICTIM, pool: {name: VICTIM, resourceSliceCount: 1}, devices: [{name: one}]}
`, "VICTIM", victim)
	if _, err := shared.Kubectl(t.Context(), manifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := shared.Kubectl(context.WithoutCancel(t.Context()), manifest, "delete", "--ignore-not-found", "-f", "-"); err != nil {
			t.Log(err) // the cluster ends with the tests
		}
	})
}

// certRequest returns a kubelet's certificate request for a pod, correct except that another node than the pod's sends it.
func certRequest(t *testing.T, pod, node string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	stub, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	p, err := kube.CoreV1().Pods("default").Get(t.Context(), pod, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	account, err := kube.CoreV1().ServiceAccounts("default").Get(t.Context(), p.Spec.ServiceAccountName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n, err := kube.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": "certificates.k8s.io/v1", "kind": "PodCertificateRequest", "metadata": map[string]any{"generateName": "thief-", "namespace": "default"},
		"spec": map[string]any{
			"signerName": "attacked.test/signer", "podName": pod, "podUID": p.UID, "serviceAccountName": account.Name, "serviceAccountUID": account.UID,
			"nodeName": node, "nodeUID": n.UID, "maxExpirationSeconds": 86400, "stubPKCS10Request": base64.StdEncoding.EncodeToString(stub),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// resourceSlice returns a slice of a node, or with "" of all nodes.
func resourceSlice(node string) []byte {
	where := `"nodeName":"` + node + `"`
	if node == "" {
		where = `"allNodes":true`
	}
	return []byte(`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceSlice","metadata":{"generateName":"thief-"},
		"spec":{"driver":"attacked.test",` + where + `,"pool":{"name":"thief","resourceSliceCount":1},"devices":[{"name":"one"}]}}`)
}

// TestKubeCall_ForeignDevicesAreRefused requests, as the stolen node, the claims, slices and certificates of another.
func TestKubeCall_ForeignDevicesAreRefused(t *testing.T) {
	const merge, plain = "application/merge-patch+json", "application/json"
	createDevices(t)
	th := stealCredentials(t, stolen).mustOpenLink(t, nil)
	th.subscribe(th.inbox(), "")
	own := wire.KubeRequest{Method: http.MethodPost, Path: slicesPath, ContentType: plain, Body: resourceSlice(stolen)}
	if r := th.requestKube(t, own); r.Code != http.StatusCreated {
		t.Fatalf("the stolen node's own slice: %d %s %s", r.Code, r.Error, r.Body) // the control: otherwise the rest proves nothing
	}
	own = wire.KubeRequest{Method: http.MethodDelete, Path: slicesPath, Query: "fieldSelector=spec.nodeName%3D" + stolen}
	if r := th.requestKube(t, own); r.Code != http.StatusOK {
		t.Fatalf("an end of its own slices: %d %s %s", r.Code, r.Error, r.Body)
	}
	for name, r := range map[string]wire.KubeRequest{
		"another's claim":                     {Method: http.MethodGet, Path: claimsPath + "/of-" + victim},
		"all claims":                          {Method: http.MethodGet, Path: claimsPath},
		"a claim of its own making":           {Method: http.MethodPost, Path: claimsPath, ContentType: plain, Body: []byte(`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"thief"},"spec":{"devices":{"requests":[{"name":"one","exactly":{"deviceClassName":"attacked.test"}}]}}}`)},
		"the status of another's claim":       {Method: http.MethodPatch, Path: claimsPath + "/of-" + victim + "/status", ContentType: merge, Body: []byte(`{"status":{"devices":[{"driver":"attacked.test","pool":"x","device":"one"}]}}`)},
		"another's slice":                     {Method: http.MethodGet, Path: slicesPath + "/of-" + victim},
		"all slices":                          {Method: http.MethodGet, Path: slicesPath},
		"slices of another":                   {Method: http.MethodGet, Path: slicesPath, Query: ofVictim},
		"an end of another's slice":           {Method: http.MethodDelete, Path: slicesPath + "/of-" + victim},
		"an end of another's slices":          {Method: http.MethodDelete, Path: slicesPath, Query: ofVictim},
		"an end of all slices":                {Method: http.MethodDelete, Path: slicesPath},
		"another's slice as its own":          {Method: http.MethodPatch, Path: slicesPath + "/of-" + victim, ContentType: merge, Body: []byte(`{"spec":{"nodeName":"` + stolen + `"}}`)},
		"a slice in another's name":           {Method: http.MethodPost, Path: slicesPath, ContentType: plain, Body: resourceSlice(victim)},
		"a slice for all nodes":               {Method: http.MethodPost, Path: slicesPath, ContentType: plain, Body: resourceSlice("")},
		"all requests for certificates":       {Method: http.MethodGet, Path: podCertsPath},
		"requests of another":                 {Method: http.MethodGet, Path: "/apis/certificates.k8s.io/v1/podcertificaterequests", Query: ofVictim},
		"a certificate of another's pod":      {Method: http.MethodPost, Path: podCertsPath, ContentType: plain, Body: certRequest(t, "on-"+victim, victim)},
		"another's pod as its own":            {Method: http.MethodPost, Path: podCertsPath, ContentType: plain, Body: certRequest(t, "on-"+victim, stolen)},
		"a signer that its pod has not named": {Method: http.MethodPost, Path: podCertsPath, ContentType: plain, Body: certRequest(t, "on-"+stolen, stolen)},
		"a certificate that it signs itself":  {Method: http.MethodPatch, Path: podCertsPath + "/x/status", ContentType: merge, Body: []byte(`{"status":{"certificateChain":"x"}}`)},
		"a trust bundle":                      {Method: http.MethodPost, Path: "/apis/certificates.k8s.io/v1/clustertrustbundles", ContentType: plain, Body: []byte(`{"apiVersion":"certificates.k8s.io/v1","kind":"ClusterTrustBundle","metadata":{"name":"thief"},"spec":{"trustBundle":"x"}}`)},
	} {
		if r := th.requestKube(t, r); r.Code != http.StatusForbidden {
			t.Errorf("%s: %d %s %.300s", name, r.Code, r.Error, r.Body)
		}
	}
	if _, err := kube.ResourceV1().ResourceSlices().Get(t.Context(), "of-"+victim, metav1.GetOptions{}); err != nil {
		t.Errorf("the victim's slice: %v", err)
	}
}
