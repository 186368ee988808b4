package localapi_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
)

// TestServer_ServesIssuerDiscovery: a pod reads the issuer of tokens, and the keys that verify them, as from
// kube-apiserver: if a role allows it, with its own address in the document, and without a link.
func TestServer_ServesIssuerDiscovery(t *testing.T) {
	s := newPodGateway(t)
	s.cloud.goOffline()
	const issuer, jwks = "/.well-known/openid-configuration", "/openid/v1/jwks"
	get := func(path string) ([]byte, error) {
		return clientFor(t, s.configFor(s.issuer.Token(podClaims()))).Discovery().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
	}
	for _, path := range []string{issuer, jwks} {
		if got, err := get(path); !apierrors.IsForbidden(err) {
			t.Errorf("%s without a role: %s, %v", path, got, err)
		}
	}
	cluster := func(resource string) wire.Key {
		return wire.Key{Group: rbacv1.GroupName, Resource: resource, Name: "system:service-account-issuer-discovery"}
	}
	s.deliverJSON(cluster("clusterroles"), rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "system:service-account-issuer-discovery", UID: "r2"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/.well-known/openid-configuration", "/openid/v1/jwks"}}},
	})
	s.deliverJSON(cluster("clusterrolebindings"), rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "system:service-account-issuer-discovery", UID: "b2"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:serviceaccounts"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:service-account-issuer-discovery"},
	})
	data, err := get(issuer)
	if err != nil {
		t.Fatal(err)
	}
	var document map[string]any
	if err := json.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	algs, _ := document["id_token_signing_alg_values_supported"].([]any)
	if document["issuer"] != clusterName || document["jwks_uri"] != "https://"+s.podAddress()+jwks || len(algs) == 0 {
		t.Errorf("document %s", data)
	}
	keys, err := get(jwks)
	if err != nil {
		t.Fatal(err)
	}
	var delivered wire.TokenKeys
	if err := json.Unmarshal(s.issuer.Keys(), &delivered); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(delivered.JWKS), string(keys)); diff != "" || !strings.Contains(string(keys), `"kid"`) {
		t.Errorf("keys (-delivered +told):\n%s", diff)
	}
}
