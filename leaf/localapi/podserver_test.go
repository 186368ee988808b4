package localapi_test

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/access/accesstest"
	"github.com/frond-edge/frond/leaf/localapi"
	"github.com/frond-edge/frond/leaf/localapi/listen"
	"github.com/frond-edge/frond/test/kit"
)

const clusterName = "https://cluster"

// podGateway is a gateway that serves pods: pod default/web with service account default/robot runs on it.
type podGateway struct {
	*gateway
	issuer *accesstest.Issuer
	pods   listen.PodsConfig
}

func newPodGateway(t *testing.T, options ...option) *podGateway {
	t.Helper()
	s := &podGateway{
		issuer: accesstest.New(t, clusterName), pods: listen.PodsConfig{Dir: t.TempDir(), Address: netip.MustParseAddrPort("127.0.0.1:0")},
	}
	options = append([]option{func(c *localapi.Config) { c.Pods = s.pods }}, options...)
	s.gateway = newGateway(t, true, options...)
	web := newPod("web", "u1", "1")
	web.Spec.ServiceAccountName = "robot"
	s.deliverObjects(web)
	s.deliverJSON(wire.Key{Resource: "serviceaccounts", Namespace: "default", Name: "robot"},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "robot", UID: "a1"}})
	s.deliverRaw(wire.TokenKeysKey(), s.issuer.Keys())
	s.bindRole("default", rbacv1.PolicyRule{
		Verbs: []string{"get", "list", "watch", "create"}, APIGroups: []string{"", "example.com"}, Resources: []string{"configmaps", "widgets"},
	})
	return s
}

// deliverRaw simulates the delivery of any object.
func (s *podGateway) deliverRaw(key wire.Key, object []byte) {
	s.t.Helper()
	s.seq++
	m := wire.Message{Node: gatewayNode, Key: key, Op: wire.Apply, ClusterEpoch: "cluster-1", Sequence: s.seq, Object: object}
	if object == nil {
		m.Op = wire.Delete
	}
	if err := s.store.Apply(s.t.Context(), []wire.Message{m}, s.seq); err != nil {
		s.t.Fatal(err)
	}
}

func (s *podGateway) deliverJSON(key wire.Key, o any) {
	s.t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.deliverRaw(key, data)
}

// bindRole binds a role in a namespace to the pod's service account, and replaces the previous one.
func (s *podGateway) bindRole(namespace string, rules ...rbacv1.PolicyRule) {
	s.t.Helper()
	key := func(resource string) wire.Key {
		return wire.Key{Group: rbacv1.GroupName, Resource: resource, Namespace: namespace, Name: "robot"}
	}
	s.deliverJSON(key("roles"), rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "robot", UID: "r1"}, Rules: rules})
	s.deliverJSON(key("rolebindings"), rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "robot", UID: "b1"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "robot"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "robot"},
	})
}

func podClaims() accesstest.Claims {
	return accesstest.Claims{Namespace: "default", Account: "robot", AccountUID: "a1", Pod: "web", PodUID: "u1"}
}

// configFor returns a pod's client configuration with a token.
func (s *podGateway) configFor(token string) *rest.Config {
	s.t.Helper()
	var cm corev1.ConfigMap
	return &rest.Config{Host: "https://" + s.podAddress(), BearerToken: token, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: s.rootCAPEM(&cm)}}
}

func (s *podGateway) podAddress() string {
	s.t.Helper()
	list := s.api.PodAddresses()
	if len(list) == 0 {
		s.t.Fatal("no pods are served")
	}
	return list[0].String()
}

// rootCAPEM reads the bundle that the kubelet mounts into pods.
func (s *podGateway) rootCAPEM(cm *corev1.ConfigMap) []byte {
	s.t.Helper()
	key := wire.Key{Resource: "configmaps", Namespace: "default", Name: "kube-root-ca.crt"}
	if _, err := s.store.Get(key); err != nil {
		root := newConfigMap("kube-root-ca.crt", "")
		root.Data = map[string]string{"ca.crt": "# the cluster's"}
		s.deliverJSON(key, root)
	}
	got, err := s.newClient(true).CoreV1().ConfigMaps("default").Get(s.t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	*cm = *got
	return []byte(got.Data["ca.crt"])
}

func TestPodServer_IsTrustedByPods(t *testing.T) {
	s := newPodGateway(t)
	var cm corev1.ConfigMap
	bundle := s.rootCAPEM(&cm)
	if !strings.HasPrefix(string(bundle), "# the cluster's\n-----BEGIN CERTIFICATE") {
		t.Errorf("the bundle that pods get: %s", bundle)
	}
	block, _ := pem.Decode(bundle)
	ca, err := x509.ParseCertificate(block.Bytes)
	if err != nil || !ca.IsCA || ca.NotAfter.Year() != 9999 || ca.NotBefore.Year() != 1970 {
		t.Errorf("the gateway's CA: %v, %+v", err, ca)
	}
	if held, err := s.store.Get(wire.Key{Resource: "configmaps", Namespace: "default", Name: "kube-root-ca.crt"}); err != nil ||
		strings.Contains(string(held.Object), "BEGIN") {
		t.Errorf("the store does not hold the cloud's own words: %v, %s", err, held.Object)
	}
	if _, err := clientFor(t, s.configFor(s.issuer.Token(podClaims()))).Discovery().RESTClient().Get().AbsPath("/livez").DoRaw(t.Context()); err != nil {
		t.Errorf("TLS: %v", err)
	}
}

// TestLocalCA_SurvivesRestart: the CA is created once, its key is private, and an incomplete pair is created anew.
func TestLocalCA_SurvivesRestart(t *testing.T) {
	dir := t.TempDir()
	in := func(c *localapi.Config) {
		c.Pods = listen.PodsConfig{Dir: dir, Address: netip.MustParseAddrPort("127.0.0.1:0")}
	}
	g := newGateway(t, true, in)
	first, err := os.ReadFile(filepath.Join(dir, "localapi-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(dir, "localapi-ca.key")
	if info, err := os.Stat(key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the CA's key: %v, %v", err, info.Mode())
	}
	g.stop()
	g.start(in)
	if again, err := os.ReadFile(filepath.Join(dir, "localapi-ca.crt")); err != nil || string(again) != string(first) {
		t.Errorf("after a restart there is another CA: %v", err)
	}
	g.stop()
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	g.start(in)
	if again, err := os.ReadFile(filepath.Join(dir, "localapi-ca.crt")); err != nil || string(again) == string(first) {
		t.Errorf("without its key it was not created again: %v", err)
	}
}

// TestPodServer_RefusesHostilePod: requests that a pod may never make, with any credential.
func TestPodServer_RefusesHostilePod(t *testing.T) {
	s := newPodGateway(t)
	s.cloud.goOnline(func(http.ResponseWriter, *http.Request) { t.Error("the cloud was asked") })
	s.deliverJSON(wire.Key{Resource: "secrets", Namespace: "bank", Name: "vault"}, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: "vault", UID: "s1"}, Data: map[string][]byte{"word": []byte("swordfish")},
	})
	good := s.issuer.Token(podClaims())
	change := func(f func(*accesstest.Claims)) string {
		c := podClaims()
		f(&c)
		return s.issuer.Token(c)
	}
	for name, tt := range map[string]struct {
		path, token string
		code        int
		says        string
	}{
		"another namespace's Secret": {
			"/api/v1/namespaces/bank/secrets/vault", good, http.StatusForbidden,
			`secrets \"vault\" is forbidden: User \"system:serviceaccount:default:robot\" cannot get resource \"secrets\" in API group \"\" in the namespace \"bank\"`,
		},
		"all Secrets": {"/api/v1/secrets", good, http.StatusForbidden, `cannot list resource \"secrets\" in API group \"\" at the cluster scope`},
		"a watch of all Secrets": {
			"/api/v1/secrets?watch=1", good, http.StatusForbidden, `cannot watch resource`,
		},
		"a Secret in disguise":  {"/api/v1/namespaces/default/configmaps/../../bank/secrets/vault", good, http.StatusForbidden, ""},
		"the store":             {"/frond/store", good, http.StatusForbidden, ""},
		"other pods' tokens":    {"/apis/frond.io/v1/namespaces/default/tokens", good, http.StatusForbidden, ""},
		"the kubelet's view":    {"/api/v1/namespaces/default/pods/web", good, http.StatusForbidden, ""},
		"no token":              {"/api/v1/namespaces/default/configmaps", "", http.StatusUnauthorized, "Unauthorized"},
		"a forged token":        {"/api/v1/namespaces/default/configmaps", accesstest.New(t, clusterName).Token(podClaims()), http.StatusUnauthorized, "Unauthorized"},
		"another gateway's pod": {"/api/v1/namespaces/default/configmaps", change(func(c *accesstest.Claims) { c.Pod = "else" }), http.StatusUnauthorized, "Unauthorized"},
		"an expired token": {
			"/api/v1/namespaces/default/configmaps", change(func(c *accesstest.Claims) { c.Issued = time.Now().Add(-2 * time.Hour) }),
			http.StatusUnauthorized, "the service account token expired at",
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := rest.HTTPClientFor(s.configFor(tt.token))
			if err != nil {
				t.Fatal(err)
			}
			defer client.CloseIdleConnections()
			code, body := httpGet(t, client, "https://"+s.podAddress()+tt.path)
			if code != tt.code || !strings.Contains(string(body), tt.says) || strings.Contains(string(body), "swordfish") {
				t.Errorf("%d: %s", code, body)
			}
		})
	}
	t.Run("impersonation", func(t *testing.T) {
		cfg := s.configFor(good)
		cfg.Impersonate.UserName = "system:admin"
		if _, err := clientFor(t, cfg).CoreV1().ConfigMaps("default").Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%v", err)
		}
	})
}

// TestAuthorize_NamespacedRoleCoversOneNamespace: a path that names one namespace inside another is authorized in the latter.
func TestAuthorize_NamespacedRoleCoversOneNamespace(t *testing.T) {
	s := newPodGateway(t)
	s.cloud.goOnline(serveDiscovery)
	s.bindRole("default", rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{""}, Resources: []string{"namespaces"}})
	all := wire.Scope{Version: "v1", Resource: "namespaces"}
	s.deliverJSON(all.Marker(), wire.ScopeKind{Scope: all, Kind: "Namespace"}.Mark())
	for _, name := range []string{"default", "bank"} {
		s.deliverJSON(wire.Key{Resource: "namespaces", Name: name}, &corev1.Namespace{
			TypeMeta: metav1.TypeMeta{Kind: "Namespace", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		})
	}
	client, err := rest.HTTPClientFor(s.configFor(s.issuer.Token(podClaims())))
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	for path, want := range map[string]int{
		"/api/v1/namespaces/default":                    http.StatusOK,
		"/api/v1/namespaces/bank":                       http.StatusForbidden,
		"/api/v1/namespaces/default/namespaces/bank":    http.StatusNotFound,
		"/api/v1/namespaces/default/namespaces":         http.StatusNotFound,
		"/api/v1/namespaces/default/namespaces?watch=1": http.StatusNotFound,
	} {
		if code, body := httpGet(t, client, "https://"+s.podAddress()+path); code != want {
			t.Errorf("%s: %d, want %d: %s", path, code, want, body)
		}
	}
}

// TestForward_CarriesCallersToken: Kubernetes authorizes a pod's write by the pod's own token, never as the node's.
func TestForward_CarriesCallersToken(t *testing.T) {
	s := newPodGateway(t)
	token := s.issuer.Token(podClaims())
	c := clientFor(t, s.configFor(token)).CoreV1().ConfigMaps("default")
	if _, err := c.Create(t.Context(), newConfigMap("new", "1"), metav1.CreateOptions{}); !apierrors.IsServiceUnavailable(err) ||
		!strings.Contains(err.Error(), "cannot ask the cloud") {
		t.Errorf("without a link: %v", err)
	}
	s.cloud.goOnline(func(w http.ResponseWriter, _ *http.Request) {
		writeAnswer(w, http.StatusCreated, newConfigMap("new", "1"))
	})
	if _, err := c.Create(t.Context(), newConfigMap("new", "1"), metav1.CreateOptions{}); err != nil {
		t.Errorf("with a link: %v", err)
	}
	asked := s.cloud.requestsSeen()
	if len(asked) != 1 || asked[0].Method != http.MethodPost || asked[0].Token != token {
		t.Errorf("the cloud was asked %+v", asked)
	}
	// A request of the kubelet carries no token, whichever caller came before.
	if _, err := s.newClient(true).CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if asked = s.cloud.requestsSeen(); asked[len(asked)-1].Token != "" {
		t.Errorf("the kubelet's question went with a token: %+v", asked)
	}
}

// TestReviews_Offline: reviews of a caller's identity and rights are answered from the gateway's store.
func TestReviews_Offline(t *testing.T) {
	s := newPodGateway(t)
	s.deliverJSON(wire.Key{Group: rbacv1.GroupName, Resource: "clusterroles", Name: "basic"}, rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "basic"}, Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"create"}, APIGroups: []string{"authorization.k8s.io", "authentication.k8s.io"}, Resources: []string{"*"}},
		},
	})
	s.deliverJSON(wire.Key{Group: rbacv1.GroupName, Resource: "clusterrolebindings", Name: "basic"}, rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "basic"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "basic"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:authenticated"}},
	})
	token := s.issuer.Token(podClaims())
	c := clientFor(t, s.configFor(token))
	me, err := c.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || me.Status.UserInfo.Username != "system:serviceaccount:default:robot" {
		t.Errorf("who am I: %v, %+v", err, me)
	}
	for verb, want := range map[string]bool{"list": true, "delete": false} {
		may, err := c.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Resource: "configmaps", Namespace: "default"},
			},
		}, metav1.CreateOptions{})
		if err != nil || may.Status.Allowed != want {
			t.Errorf("may I %s: %v, %+v", verb, err, may)
		}
	}
	rules, err := c.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"},
	}, metav1.CreateOptions{})
	if err != nil || len(rules.Status.ResourceRules) != 2 {
		t.Errorf("what may I: %v, %+v", err, rules)
	}
	seen, err := c.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil || !seen.Status.Authenticated || seen.Status.User.UID != "a1" {
		t.Errorf("whose token: %v, %+v", err, seen)
	}
	elsewhere, err := c.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{"vault"}},
	}, metav1.CreateOptions{})
	if err != nil || elsewhere.Status.Authenticated || len(elsewhere.Status.Audiences) != 0 {
		t.Errorf("a token for the API shown to another program: %v, %+v", err, elsewhere)
	}
	// Every user may review its own rights, by the path; the body must not contain another review.
	other := &authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{Kind: "SubjectAccessReview", APIVersion: "authorization.k8s.io/v1"},
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "somebody", ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: "secrets"},
		},
	}
	if err := c.AuthorizationV1().RESTClient().Post().Resource("selfsubjectaccessreviews").Body(other).Do(t.Context()).Error(); !apierrors.IsBadRequest(err) {
		t.Errorf("a question about somebody else in place of one about oneself: %v", err)
	}
}

// TestPodServer_FollowsServiceAddresses: the API listens on the addresses of its Service, follows changes, and informs proxies.
func TestPodServer_FollowsServiceAddresses(t *testing.T) {
	probe, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.7:0")
	if err != nil {
		t.Skipf("no second loopback address here: %v", err)
	}
	port := probe.Addr().(*net.TCPAddr).AddrPort().Port()
	_ = probe.Close()
	claimed := make(chan netip.Addr, 16) // more than are claimed below
	refuse := errors.New("no rights")
	s := newPodGateway(t, func(c *localapi.Config) {
		c.Pods.ClaimAddress = func(_ context.Context, a netip.Addr) error {
			claimed <- a
			if a == netip.MustParseAddr("127.0.0.9") {
				return refuse
			}
			return nil
		}
	})
	service := func(ips ...string) *corev1.Service {
		return &corev1.Service{
			TypeMeta:   metav1.TypeMeta{Kind: "Service", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", UID: "k1"},
			Spec:       corev1.ServiceSpec{ClusterIPs: ips, ClusterIP: ips[0], Ports: []corev1.ServicePort{{Port: int32(port)}}},
		}
	}
	served := func() string {
		var list []string
		for _, a := range s.api.PodAddresses() {
			list = append(list, a.Addr().String())
		}
		return strings.Join(list, " ")
	}
	s.deliverObjects(service("127.0.0.7"))
	kit.Eventually(t, "the Service's address is served", func() bool { return served() == "127.0.0.1 127.0.0.7" })
	cfg := s.configFor(s.issuer.Token(podClaims()))
	cfg.Host = fmt.Sprintf("https://127.0.0.7:%d", port)
	if _, err := clientFor(t, cfg).Discovery().RESTClient().Get().AbsPath("/livez").DoRaw(t.Context()); err != nil {
		t.Errorf("by the Service's address: %v", err)
	}
	s.deliverObjects(service("127.0.0.8", "127.0.0.9"))
	kit.Eventually(t, "the Service's new address is served", func() bool { return served() == "127.0.0.1 127.0.0.8" })
	name, yes := "https", true
	s.deliverJSON(wire.Key{Group: "discovery.k8s.io", Resource: "endpointslices", Namespace: "default", Name: "kubernetes"}, &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"},
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}}},
	})
	slices, err := s.newClient(true).DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(slices.Items) != 1 || len(slices.Items[0].Endpoints) != 1 || slices.Items[0].Endpoints[0].Addresses[0] != "127.0.0.1" {
		t.Errorf("the Service's endpoints: %v, %+v", err, slices)
	}
}

// TestLease_LeaderElection: a Lease that is not stored here is read with the cloud's version, so that it can be written. A
// program's Lease is never one of those that the kubelet holds in this process.
func TestLease_LeaderElection(t *testing.T) {
	s := newPodGateway(t)
	s.bindRole("default", rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}})
	holder := "somebody"
	s.cloud.goOnline(func(w http.ResponseWriter, r *http.Request) {
		lease := &coordinationv1.Lease{
			TypeMeta:   metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "leader", ResourceVersion: "4711"},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
		}
		if r.Method == http.MethodPut {
			if err := json.NewDecoder(r.Body).Decode(lease); err != nil || lease.ResourceVersion != "4711" {
				answerStatus(w, http.StatusConflict, metav1.StatusReasonConflict)
				return
			}
		}
		writeAnswer(w, http.StatusOK, lease)
	})
	cfg := s.configFor(s.issuer.Token(podClaims()))
	cfg.ContentType = "application/json" // the fake cloud reads JSON
	leases := clientFor(t, cfg).CoordinationV1().Leases("default")
	lease, err := leases.Get(t.Context(), "leader", metav1.GetOptions{})
	if err != nil || *lease.Spec.HolderIdentity != "somebody" {
		t.Fatalf("%v, %+v", err, lease)
	}
	me := "me"
	lease.Spec.HolderIdentity = &me
	if lease, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil || *lease.Spec.HolderIdentity != me {
		t.Errorf("%v, %+v", err, lease)
	}
	if _, err := leases.Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
		t.Errorf("create: %v", err)
	}
	for _, asked := range s.cloud.requestsSeen() {
		if asked.Method != http.MethodGet && asked.Token == "" {
			t.Errorf("%s %s went as the node", asked.Method, asked.Path)
		}
	}
	// Without a link no program is elected, and each learns so at once: a lease known only to this gateway would make two leaders.
	s.cloud.goOffline()
	_, got := leases.Get(t.Context(), "leader", metav1.GetOptions{})
	_, updated := leases.Update(t.Context(), lease, metav1.UpdateOptions{})
	_, created := leases.Create(t.Context(), lease, metav1.CreateOptions{})
	for verb, err := range map[string]error{"get": got, "update": updated, "create": created} {
		if !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "cannot ask the cloud") {
			t.Errorf("%s without a link: %v", verb, err)
		}
	}
}
