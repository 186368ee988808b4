package localapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi"
	"github.com/frond-edge/frond/test/kit"
)

func widgetResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
}

func widgetScope() wire.Scope {
	return wire.Scope{Group: "example.com", Version: "v1", Resource: "widgets", Namespace: "default"}
}

const robotUser = "system:serviceaccount:default:robot"

// serveDiscovery simulates a cluster's discovery: core v1 with ConfigMaps and Namespaces, and widgets.
func serveDiscovery(w http.ResponseWriter, r *http.Request) {
	kind := func(kind, resource string) apidiscovery.APIResourceDiscovery {
		return apidiscovery.APIResourceDiscovery{
			Resource: resource, Scope: apidiscovery.ScopeNamespace, SingularResource: resource[:len(resource)-1],
			ResponseKind: &metav1.GroupVersionKind{Kind: kind}, Verbs: []string{"get", "list", "watch", "create"},
		}
	}
	group := func(name string, list ...apidiscovery.APIResourceDiscovery) apidiscovery.APIGroupDiscoveryList {
		return apidiscovery.APIGroupDiscoveryList{
			TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"},
			Items: []apidiscovery.APIGroupDiscovery{{ObjectMeta: metav1.ObjectMeta{Name: name}, Versions: []apidiscovery.APIVersionDiscovery{
				{Version: "v1", Resources: list, Freshness: apidiscovery.DiscoveryFreshnessCurrent},
			}}},
		}
	}
	switch r.URL.Path {
	case "/api":
		namespaces := kind("Namespace", "namespaces")
		namespaces.Scope = apidiscovery.ScopeCluster
		writeAnswer(w, http.StatusOK, group("", kind("ConfigMap", "configmaps"), kind("LimitRange", "limitranges"), namespaces))
	case "/apis":
		writeAnswer(w, http.StatusOK, group("example.com", kind("Widget", "widgets")))
	default:
		answerNotFound(w, r)
	}
}

func (s *podGateway) deliverWidget(name string, size int) {
	s.t.Helper()
	s.deliverJSON(wire.Key{Group: "example.com", Resource: "widgets", Namespace: "default", Name: name}, map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "spec": map[string]any{"size": size},
		"metadata": map[string]any{"name": name, "namespace": "default", "uid": "w-" + name, "labels": map[string]any{"size": fmt.Sprint(size)}},
	})
}

func (s *podGateway) deliverMark(scope wire.Scope, kind string) {
	s.t.Helper()
	s.deliverJSON(scope.Marker(), wire.ScopeKind{Scope: scope, Kind: kind, Namespaced: true}.Mark())
}

// withoutRetries configures clients to return the first answer: client-go otherwise tries ten times after a 503.
func withoutRetries(cfg *rest.Config) *rest.Config {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripFunc(func(r *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(r)
			if err == nil {
				resp.Header.Del("Retry-After")
			}
			return resp, err
		})
	})
	return cfg
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (t roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

func dynamicFor(t *testing.T, cfg *rest.Config) dynamic.ResourceInterface {
	t.Helper()
	c, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c.Resource(widgetResource()).Namespace("default")
}

// TestScopes_CustomResourceIsFollowed: a custom resource that a pod lists is requested from the cloud, and served when the
// store holds all of it; then without a link, and after a reboot without a link.
func TestScopes_CustomResourceIsFollowed(t *testing.T) {
	online := true
	var mu sync.Mutex
	link := func(c *localapi.Config) {
		c.Online = func() bool { mu.Lock(); defer mu.Unlock(); return online }
	}
	s := newPodGateway(t, link)
	s.cloud.goOnline(serveDiscovery)
	token := s.issuer.Token(podClaims())
	c, err := dynamic.NewForConfig(s.configFor(token))
	if err != nil {
		t.Fatal(err)
	}
	_, changed := s.api.WantedScopes()
	informer := dynamicinformer.NewFilteredDynamicInformer(c, widgetResource(), "default", 0, cache.Indexers{}, nil).Informer()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { informer.RunWithContext(ctx) })
	defer func() { cancel(); wg.Wait() }()
	<-changed
	wants, _ := s.api.WantedScopes()
	if len(wants) != 1 || wants[0].Scope != widgetScope() || !slices.Equal(wants[0].Users, []string{robotUser}) {
		t.Fatalf("the cloud is asked for %+v", wants)
	}
	s.deliverWidget("a", 1)
	if informer.HasSynced() {
		t.Error("a list was answered before all of it was here")
	}
	s.deliverMark(widgetScope(), "Widget")
	kit.Eventually(t, "the informer has synced", informer.HasSynced)
	s.deliverWidget("b", 2)
	kit.Eventually(t, "the informer follows", func() bool { return len(informer.GetStore().ListKeys()) == 2 })

	mu.Lock()
	online = false
	mu.Unlock()
	s.cloud.goOffline()
	s.deliverWidget("b", 3) // in flight before
	kit.Eventually(t, "the informer goes on without a link", func() bool {
		o, ok, _ := informer.GetStore().GetByKey("default/b")
		size, _, _ := unstructured.NestedInt64(o.(*unstructured.Unstructured).Object, "spec", "size")
		return ok && size == 3
	})
	cancel()
	wg.Wait()

	s.stop()
	s.start(link, func(c *localapi.Config) { c.Pods = s.pods })
	if wants, _ = s.api.WantedScopes(); len(wants) != 1 || wants[0].Scope != widgetScope() || !slices.Equal(wants[0].Users, []string{robotUser}) {
		t.Errorf("after a restart the cloud is asked for %+v", wants)
	}
	list, err := dynamicFor(t, withoutRetries(s.configFor(token))).List(t.Context(), metav1.ListOptions{LabelSelector: "size=3"})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetKind() != "Widget" || list.GetKind() != "WidgetList" || list.GetResourceVersion() == "" {
		t.Errorf("after a restart without a link: %v, %+v", err, list)
	}
	if _, err := dynamicFor(t, withoutRetries(s.configFor(token))).Get(t.Context(), "none", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what is not in a complete kind: %v", err)
	}
	if _, err := clientFor(t, withoutRetries(s.configFor(token))).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("a kind that was never asked for: %v", err)
	}
	d, err := discovery.NewDiscoveryClientForConfig(s.configFor(token))
	if err != nil {
		t.Fatal(err)
	}
	s.allowDiscovery()
	if kinds, err := d.ServerResourcesForGroupVersion("example.com/v1"); err != nil || len(kinds.APIResources) != 1 {
		t.Errorf("discovery after a restart without a link: %v, %+v", err, kinds)
	}
	if _, all, err := d.ServerGroupsAndResources(); err != nil || len(all) != 2 {
		t.Errorf("aggregated discovery: %v, %+v", err, all)
	}
}

// TestScopes_EndIsNoDeletion: when the cloud stops sending a kind, a watch ends, and no deletion is sent.
func TestScopes_EndIsNoDeletion(t *testing.T) {
	s := newPodGateway(t)
	s.cloud.goOnline(serveDiscovery)
	s.deliverWidget("a", 1)
	s.deliverMark(widgetScope(), "Widget")
	c := dynamicFor(t, withoutRetries(s.configFor(s.issuer.Token(podClaims()))))
	list, err := c.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%v, %+v", err, list)
	}
	w, err := c.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	s.deliverRaw(widgetScope().Marker(), nil)
	s.deliverRaw(wire.Key{Group: "example.com", Resource: "widgets", Namespace: "default", Name: "a"}, nil)
	e, ok := <-w.ResultChan()
	if !ok || e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
		t.Fatalf("the watch said %v %+v", e.Type, e.Object)
	}
	s.api.SetScopeVerdicts([]wire.ScopeVerdict{{Scope: widgetScope(), User: robotUser, Reason: wire.ScopeForbidden, Message: "the role is gone"}})
	if _, err := c.Watch(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a watch of what the cloud refuses: %v", err)
	}
}

// TestScopes_UnfollowableKindIsForwarded: such a kind is requested from the cloud with the pod's token.
func TestScopes_UnfollowableKindIsForwarded(t *testing.T) {
	s := newPodGateway(t)
	s.cloud.goOnline(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/example.com/v1/namespaces/default/widgets" {
			serveDiscovery(w, r)
			return
		}
		writeAnswer(w, http.StatusOK, map[string]any{"apiVersion": "example.com/v1", "kind": "WidgetList", "metadata": map[string]any{}, "items": []any{}})
	})
	s.api.SetScopeVerdicts([]wire.ScopeVerdict{{Scope: widgetScope(), User: robotUser, Reason: wire.ScopeTooLarge, Message: "a million"}})
	token := s.issuer.Token(podClaims())
	c := dynamicFor(t, withoutRetries(s.configFor(token)))
	if _, err := c.List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if asked := s.cloud.requestsSeen(); asked[len(asked)-1].Token != token {
		t.Errorf("the cloud was asked %+v", asked[len(asked)-1])
	}
	if _, err := c.Watch(t.Context(), metav1.ListOptions{}); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("a watch: %v", err)
	}
}

// TestScopes_ExpireAfterGrace: after the last list and the grace period no scope is wanted, also not after a restart.
func TestScopes_ExpireAfterGrace(t *testing.T) {
	short := func(c *localapi.Config) { c.ScopeGrace = 50 * time.Millisecond }
	s := newPodGateway(t, short)
	s.cloud.goOnline(serveDiscovery)
	s.deliverMark(widgetScope(), "Widget")
	if _, err := dynamicFor(t, withoutRetries(s.configFor(s.issuer.Token(podClaims())))).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, "nothing is wanted", func() bool { wants, _ := s.api.WantedScopes(); return len(wants) == 0 })
	kit.Eventually(t, "no wish is kept", func() bool { kept, _ := s.store.List("frond.io", "wants", ""); return len(kept) == 0 })
}

// TestLimits_WatchesPerPod: a pod with too many open watches gets 429, and others are served.
func TestLimits_WatchesPerPod(t *testing.T) {
	s := newPodGateway(t)
	s.cloud.goOnline(serveDiscovery)
	s.deliverMark(widgetScope(), "Widget")
	c := dynamicFor(t, withoutRetries(s.configFor(s.issuer.Token(podClaims()))))
	var refused error
	open := 0
	for ; refused == nil && open < 200; open++ {
		w, err := c.Watch(t.Context(), metav1.ListOptions{})
		if refused = err; err == nil {
			defer w.Stop()
		}
	}
	if !apierrors.IsTooManyRequests(refused) || open != 129 {
		t.Errorf("watch %d: %v", open, refused)
	}
	if _, err := c.List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("a list beside: %v", err)
	}
	unbound := podClaims()
	unbound.Pod = ""
	w, err := dynamicFor(t, withoutRetries(s.configFor(s.issuer.Token(unbound)))).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatalf("another's watch: %v", err)
	}
	w.Stop()
}

// TestScopes_LimitPerUser: an account that lists in many namespaces leaves most of a node's scopes to others.
func TestScopes_LimitPerUser(t *testing.T) {
	s := newPodGateway(t)
	s.cloud.goOnline(serveDiscovery)
	c, err := dynamic.NewForConfig(withoutRetries(s.configFor(s.issuer.Token(podClaims()))))
	if err != nil {
		t.Fatal(err)
	}
	var refused error
	for i := 0; refused == nil && i < 64; i++ {
		scope := widgetScope()
		scope.Namespace = fmt.Sprint("invented-", i)
		s.bindRole(scope.Namespace, rbacv1.PolicyRule{Verbs: []string{"list"}, APIGroups: []string{scope.Group}, Resources: []string{scope.Resource}})
		s.deliverMark(scope, "Widget")
		_, refused = c.Resource(widgetResource()).Namespace(scope.Namespace).List(t.Context(), metav1.ListOptions{})
	}
	if wants, _ := s.api.WantedScopes(); !apierrors.IsTooManyRequests(refused) || len(wants) != 32 {
		t.Errorf("%d kinds are followed, and then %v", len(wants), refused)
	}
}

// allowDiscovery lets the pod's account read discovery, as the cluster's own role does.
func (s *podGateway) allowDiscovery() {
	s.t.Helper()
	var role, binding any
	for name, text := range map[*any]string{
		&role: `{"metadata":{"name":"browse"},"rules":[{"verbs":["get"],"nonResourceURLs":["/api","/api/*","/apis","/apis/*","/openapi/*"]}]}`,
		&binding: `{"metadata":{"name":"browse"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"browse"},
			"subjects":[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"system:authenticated"}]}`,
	} {
		if err := json.Unmarshal([]byte(text), name); err != nil {
			s.t.Fatal(err)
		}
	}
	s.deliverJSON(wire.Key{Group: "rbac.authorization.k8s.io", Resource: "clusterroles", Name: "browse"}, role)
	s.deliverJSON(wire.Key{Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings", Name: "browse"}, binding)
}
