package attacks_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"testing"
	"time"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
)

// requestKube makes a Kubernetes request as the attacker's node.
func (th *attacker) requestKube(t *testing.T, r wire.KubeRequest) wire.KubeReply {
	t.Helper()
	body, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var reply wire.KubeReply
	// Retried where no answer comes: calls are not durable.
	if !pollWithin(t.Context(), waitTimeout, func() bool {
		before := len(th.received(th.inbox()))
		th.publish(subject.CallSubject(th.node, subject.VerbKube), th.inbox(), body)
		if !pollWithin(t.Context(), 10*time.Second, func() bool { return len(th.received(th.inbox())) > before }) {
			return false
		}
		return json.Unmarshal(th.received(th.inbox())[before].data, &reply) == nil
	}) {
		t.Fatalf("%s %s: no answer", r.Method, r.Path)
	}
	return reply
}

// TestKubeCall_ForeignObjectsAreRefused requests, as the stolen node, other nodes' objects and excess rights.
func TestKubeCall_ForeignObjectsAreRefused(t *testing.T) {
	th := stealCredentials(t, stolen).mustOpenLink(t, nil)
	th.subscribe(th.inbox(), "")
	if r := th.requestKube(t, wire.KubeRequest{Method: http.MethodGet, Path: "/api/v1/namespaces/default/secrets/of-" + stolen}); r.Code != http.StatusOK {
		t.Fatalf("the stolen node's own secret: %d %s %s", r.Code, r.Error, r.Body) // the control: otherwise the rest proves nothing
	}
	risen, refused := counterDelta(t, "frond_kube_refused_total"), 0.0
	checkUnharmed(t, func() {
		for name, r := range allRequests(t) {
			r := th.requestKube(t, r)
			if r.Code/100 == 2 {
				t.Errorf("%s: %d %.300s", name, r.Code, r.Body)
			}
			switch r.Code {
			case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden:
				refused++
			default:
				t.Logf("%s: %d %s", name, r.Code, r.Error)
			}
		}
	})
	awaitCounter(t, "what is not granted", risen, refused)
	awaitLogged(t, "request of a node not granted", stolen)
}

// The API paths of the stolen node and of the victim.
const ownNodePath, victimNodePath = "/api/v1/nodes/" + stolen, "/api/v1/nodes/" + victim

// allRequests lists all requests of the test.
func allRequests(t *testing.T) map[string]wire.KubeRequest {
	t.Helper()
	all := readRequests()
	maps.Copy(all, writeRequests(t))
	return all
}

func readRequests() map[string]wire.KubeRequest {
	return map[string]wire.KubeRequest{
		"another's secret":            {Method: http.MethodGet, Path: "/api/v1/namespaces/default/secrets/of-" + victim},
		"all secrets":                 {Method: http.MethodGet, Path: "/api/v1/secrets"},
		"all secrets of a namespace":  {Method: http.MethodGet, Path: "/api/v1/namespaces/default/secrets"},
		"secrets by a selector":       {Method: http.MethodGet, Path: "/api/v1/secrets", Query: "fieldSelector=metadata.name%3Dof-" + victim},
		"a path that climbs":          {Method: http.MethodGet, Path: "/api/v1/namespaces/default/secrets/of-" + stolen + "/../of-" + victim},
		"an escaped path":             {Method: http.MethodGet, Path: "/api/v1/namespaces/default/secrets/of-" + stolen + "%2f..%2fof-" + victim},
		"a watch":                     {Method: http.MethodGet, Path: "/api/v1/secrets", Query: "watch=true"},
		"a watch with another word":   {Method: http.MethodGet, Path: "/api/v1/secrets", Query: "watch=&watch=1"},
		"a watch in the path":         {Method: http.MethodGet, Path: "/api/v1/watch/secrets"},
		"what is no API":              {Method: http.MethodGet, Path: "/debug/pprof/heap"},
		"the apiserver's metrics":     {Method: http.MethodGet, Path: "/metrics"},
		"a command":                   {Method: http.MethodGet, Path: "/api/v1/namespaces/default/pods/on-" + victim + "/exec", Query: "command=id"},
		"another's log":               {Method: http.MethodGet, Path: "/api/v1/namespaces/default/pods/on-" + victim + "/log"},
		"another's kubelet":           {Method: http.MethodGet, Path: victimNodePath + "/proxy/pods"},
		"an identity":                 {Method: http.MethodGet, Path: "/apis/identity.frond.io/v1alpha1/nodeidentities"},
		"with a token that is none":   {Method: http.MethodGet, Path: "/api/v1/secrets", Token: "none"},
		"with a token that is a line": {Method: http.MethodGet, Path: "/api/v1/secrets", Token: "x\r\nImpersonate-User: admin"},
		"with a header as its type":   {Method: http.MethodGet, Path: "/api/v1/secrets", Accept: "a\r\nImpersonate-User: kubernetes-admin\r\nImpersonate-Group: system:masters"},
	}
}

func writeRequests(t *testing.T) map[string]wire.KubeRequest {
	t.Helper()
	const merge, plain = "application/merge-patch+json", "application/json"
	token := []byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":[],"expirationSeconds":3600}}`)
	csr := func(name, signer, user string) []byte {
		return fmt.Appendf(nil, `{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest","metadata":{"name":%q},
			"spec":{"signerName":%q,"request":%q,"usages":["client auth","digital signature"]}}`, name, signer, encodedCSR(t, user))
	}
	return map[string]wire.KubeRequest{
		"another's token":             {Method: http.MethodPost, Path: "/api/v1/namespaces/default/serviceaccounts/of-" + victim + "/token", ContentType: plain, Body: token},
		"an operator's token":         {Method: http.MethodPost, Path: "/api/v1/namespaces/kube-system/serviceaccounts/default/token", ContentType: plain, Body: token},
		"another's status":            {Method: http.MethodPatch, Path: victimNodePath + "/status", ContentType: merge, Body: []byte(`{"status":{"conditions":null}}`)},
		"another's labels":            {Method: http.MethodPatch, Path: victimNodePath, ContentType: merge, Body: []byte(`{"metadata":{"labels":{"thief":"was-here"}}}`)},
		"another's Node":              {Method: http.MethodDelete, Path: victimNodePath},
		"another's lease":             {Method: http.MethodPatch, Path: "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + victim, ContentType: merge, Body: []byte(`{"spec":{"holderIdentity":"thief"}}`)},
		"another's pod":               {Method: http.MethodDelete, Path: "/api/v1/namespaces/default/pods/on-" + victim},
		"another's pod status":        {Method: http.MethodPatch, Path: "/api/v1/namespaces/default/pods/on-" + victim + "/status", ContentType: merge, Body: []byte(`{"status":{"phase":"Failed"}}`)},
		"an eviction":                 {Method: http.MethodPost, Path: "/api/v1/namespaces/default/pods/on-" + victim + "/eviction", ContentType: plain, Body: []byte(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"on-` + victim + `","namespace":"default"}}`)},
		"a role for itself":           {Method: http.MethodPatch, Path: ownNodePath, ContentType: merge, Body: []byte(`{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`)},
		"a restricted label":          {Method: http.MethodPatch, Path: ownNodePath, ContentType: merge, Body: []byte(`{"metadata":{"labels":{"node-restriction.kubernetes.io/trusted":"yes"}}}`)},
		"no taints":                   {Method: http.MethodPatch, Path: ownNodePath, ContentType: merge, Body: []byte(`{"spec":{"taints":[{"key":"x","effect":"NoSchedule"}]}}`)},
		"an owner of its Node":        {Method: http.MethodPatch, Path: ownNodePath, ContentType: merge, Body: []byte(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"x"}]}}`)},
		"an end of its Node":          {Method: http.MethodDelete, Path: ownNodePath},
		"a certificate of another":    {Method: http.MethodPost, Path: "/apis/certificates.k8s.io/v1/certificatesigningrequests", ContentType: plain, Body: csr("thief-1", "kubernetes.io/kube-apiserver-client-kubelet", "system:node:"+victim)},
		"a certificate of an admin":   {Method: http.MethodPost, Path: "/apis/certificates.k8s.io/v1/certificatesigningrequests", ContentType: plain, Body: csr("thief-2", "kubernetes.io/kube-apiserver-client", "system:masters")},
		"an approval":                 {Method: http.MethodPut, Path: "/apis/certificates.k8s.io/v1/certificatesigningrequests/thief-2/approval", ContentType: plain, Body: csr("thief-2", "kubernetes.io/kube-apiserver-client", "system:masters")},
		"a role binding":              {Method: http.MethodPost, Path: "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", ContentType: plain, Body: []byte(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"thief"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"system:nodes"}]}`)},
		"a pod for another":           {Method: http.MethodPost, Path: "/api/v1/namespaces/default/pods", ContentType: plain, Body: podWithVictimSecret(victim)},
		"a pod with another's secret": {Method: http.MethodPost, Path: "/api/v1/namespaces/default/pods", ContentType: plain, Body: podWithVictimSecret(stolen)},
	}
}

// podWithVictimSecret is a pod that refers to the victim's secret; it has the mirror annotation, because nodes may create only mirror pods.
func podWithVictimSecret(node string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"thief-%[1]s","namespace":"default","annotations":{"kubernetes.io/config.mirror":"x"}},
		"spec":{"nodeName":%[1]q,"containers":[{"name":"c","image":"x","envFrom":[{"secretRef":{"name":"of-%[2]s"}}]}]}}`, node, victim)
}
