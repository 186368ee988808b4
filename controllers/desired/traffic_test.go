package desired_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

// fakeGroups are groups that a test changes. The group of a node that is not in it is not known.
type fakeGroups struct {
	mu sync.Mutex
	of map[string]string
}

func (g *fakeGroups) GroupOf(node string) (group string, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	group, known = g.of[node]
	return group, known
}

func (g *fakeGroups) set(group string, nodes ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.of == nil {
		g.of = map[string]string{}
	}
	for _, node := range nodes {
		g.of[node] = group
	}
}

// createServed creates a Service and a slice of it with one endpoint on each node, addressed 10.9.0.<1, 2, ...>.
func (w *engineEnv) createServed(name string, change func(*corev1.Service), nodes ...string) *discoveryv1.EndpointSlice {
	w.Helper()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	change(service)
	if _, err := w.client.CoreV1().Services(w.ns).Create(w.Context(), service, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i, node := range nodes {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.9.%d.%d", i/250, i%250+1)}, NodeName: &node})
	}
	slice, err := w.client.DiscoveryV1().EndpointSlices(w.ns).Create(w.Context(), slice, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return slice
}

func annotated(value string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Annotations = map[string]string{"frond.io/service-topology": value} }
}

// setAddress gives one endpoint of a slice another address, and the slice what its controller writes at each change.
func (w *engineEnv) setAddress(slice *discoveryv1.EndpointSlice, endpoint int, address string) *discoveryv1.EndpointSlice {
	w.Helper()
	slice.Endpoints[endpoint].Addresses = []string{address}
	slice.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano)}
	slice, err := w.client.DiscoveryV1().EndpointSlices(w.ns).Update(w.Context(), slice, metav1.UpdateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return slice
}

func (w *engineEnv) annotateService(name, value string) {
	w.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"frond.io/service-topology":%s}}}`, value)
	if _, err := w.client.CoreV1().Services(w.ns).Patch(w.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		w.Fatal(err)
	}
}

// sentAddresses returns the last byte of each address in the slice that a node was sent.
func (w *engineEnv) sentAddresses(node string, key wire.Key) string {
	w.Helper()
	if m := w.heldMessages(node)[key]; m.Op != wire.Apply {
		return "nothing"
	}
	var slice discoveryv1.EndpointSlice
	w.decodeObject(node, key, &slice)
	var found []string
	for _, e := range slice.Endpoints {
		found = append(found, e.Addresses[0][strings.LastIndex(e.Addresses[0], ".")+1:])
	}
	return strings.Join(found, " ")
}

func (w *engineEnv) eventuallySent(key wire.Key, want map[string]string) {
	w.Helper()
	kubetest.Eventually(w, 20*time.Second, func() error {
		for node, addresses := range want {
			if got := w.sentAddresses(node, key); got != addresses {
				return fmt.Errorf("%s was sent %q, want %q", node, got, addresses)
			}
		}
		return nil
	})
}

// TestEngine_TrafficStaysInGroup: a node is sent the endpoints of its group only, at any change of group, annotation or endpoint, and nothing
// for a change that does not concern its group.
func TestEngine_TrafficStaysInGroup(t *testing.T) {
	w := newEngineEnv(t)
	a1, a2, b, free := w.createNode("a1"), w.createNode("a2"), w.createNode("b"), w.createNode("free")
	groups := &fakeGroups{}
	groups.set("a", a1, a2)
	groups.set("b", b)
	groups.set("", free)
	engine := w.startEngine(desired.Config{Groups: groups}, &fakeOwnership{}, "desired")
	slice := w.createServed("web", func(s *corev1.Service) {
		s.Annotations = map[string]string{"apps.kubeedge.io/service-topology": "range-nodegroup"}
	}, a1, a2, b, free)
	key := sliceKey(w.ns, slice.Name)
	w.eventuallySent(key, map[string]string{a1: "1 2", a2: "1 2", b: "3", free: "4"})
	// A change of b's endpoint, and then of its own.
	before := w.publishCount(a1, key)
	slice = w.setAddress(slice, 2, "10.9.0.33")
	w.eventuallySent(key, map[string]string{b: "33"})
	w.setAddress(slice, 1, "10.9.0.22")
	w.eventuallySent(key, map[string]string{a1: "1 22", a2: "1 22"})
	for node, want := range map[string]int{a1: before + 1, b: 2, free: 1} {
		if got := w.publishCount(node, key); got != want {
			t.Errorf("%s was sent %d messages, want %d", node, got, want)
		}
	}
	// A node moves, and back; the label that says where it is does not matter.
	groups.set("a", b)
	engine.GroupsChanged()
	w.eventuallySent(key, map[string]string{a1: "1 22 33", a2: "1 22 33", b: "1 22 33", free: "4"})
	groups.set("b", b)
	engine.GroupsChanged()
	patch := []byte(`{"metadata":{"labels":{"apps.kubeedge.io/belonging-to":"a"}}}`)
	if _, err := w.client.CoreV1().Nodes().Patch(t.Context(), b, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventuallySent(key, map[string]string{a1: "1 22", a2: "1 22", b: "33"})
	engine.Resync()
	// The annotations.
	w.annotateService("web", `"cluster"`)
	w.eventuallySent(key, map[string]string{a1: "1 22 33 4", b: "1 22 33 4", free: "1 22 33 4"})
	w.annotateService("web", `"node"`)
	w.eventuallySent(key, map[string]string{a1: "1", a2: "22", b: "33", free: "4"})
	w.annotateService("web", `"zone"`)
	for _, node := range []string{a1, b} {
		patch := []byte(`{"metadata":{"labels":{"topology.kubernetes.io/zone":"z"}}}`)
		if _, err := w.client.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.eventuallySent(key, map[string]string{a1: "1 33", a2: "22", b: "1 33", free: "4"})
	w.annotateService("web", `null`) // KubeEdge's is still there
	w.eventuallySent(key, map[string]string{a1: "1 22", a2: "1 22", b: "33", free: "4"})
}

// TestEngine_UnknownGroupChangesNothing: while it is not known which groups nodes are in, none is sent endpoints that stay in a group, nor
// told that it has all slices; what it was sent before stays.
func TestEngine_UnknownGroupChangesNothing(t *testing.T) {
	w := newEngineEnv(t)
	w.createAccount("default")
	a, b := w.createNode("a"), w.createNode("b")
	slice := w.createServed("web", annotated("group"), a, b)
	key, marker := sliceKey(w.ns, slice.Name), wire.ServiceScopes()[1].Marker()
	groups, owner := &fakeGroups{}, &fakeOwnership{}
	engine := w.startEngine(desired.Config{Groups: groups}, owner, "desired-a")
	w.createPod("witness", a)
	w.eventuallyMessage(a, coreKey("pods", w.ns, "witness"), "other objects do not wait", isApplied)
	w.eventuallyMessage(a, wire.ServiceScopes()[0].Marker(), "nor do Services", isApplied)
	for _, k := range []wire.Key{key, marker, wire.SnapshotMarker(), wire.ServicesByNeedKey()} {
		if m, ok := w.heldMessages(a)[k]; ok {
			t.Errorf("%s: %s", k.Human(), m.Op)
		}
	}
	groups.set("a", a)
	groups.set("b", b)
	engine.GroupsChanged()
	w.eventuallySent(key, map[string]string{a: "1", b: "2"})
	w.eventuallyMessage(a, marker, "all slices", isApplied)
	w.eventuallyMessage(a, wire.SnapshotMarker(), "all objects", isApplied)
	held := w.heldMessages(a)
	// Another replica takes over, and does not know the groups yet.
	for _, node := range []string{a, b} {
		owner.setOwned(node, false)
	}
	later := &fakeGroups{}
	successor := w.startEngine(desired.Config{Groups: later}, &fakeOwnership{}, "desired-b")
	w.deletePod("witness")
	w.eventuallyMessage(a, coreKey("pods", w.ns, "witness"), "the other replica serves the node", isDeleted)
	w.setAddress(slice, 0, "10.9.0.11")
	w.createConfigMap("cm", "later")
	w.createPod("second", a, mountConfigMap("cm"))
	w.eventuallyMessage(a, coreKey("pods", w.ns, "second"), "a later change", isApplied)
	for _, k := range []wire.Key{key, marker} {
		if m := w.heldMessages(a)[k]; m.Sequence != held[k].Sequence {
			t.Errorf("%s was changed: %s", k.Human(), m.Op)
		}
	}
	later.set("a", a)
	later.set("b", b)
	successor.GroupsChanged()
	w.eventuallySent(key, map[string]string{a: "11", b: "2"})
}

// TestEngine_SlicesWaitForTheirService: a slice whose Service is not known is sent without endpoints, as the Service decides to whom they go:
// not left out, which would look like a loss to the replica that serves the node next. What a node has of it stays when the Service is
// deleted.
func TestEngine_SlicesWaitForTheirService(t *testing.T) {
	w := newEngineEnv(t)
	a, b := w.createNode("a"), w.createNode("b")
	groups := &fakeGroups{}
	groups.set("a", a)
	groups.set("b", b)
	engine := w.startEngine(desired.Config{Groups: groups}, &fakeOwnership{}, "desired")
	slice := w.createServed("web", annotated("group"), a, b)
	key := sliceKey(w.ns, slice.Name)
	w.eventuallySent(key, map[string]string{a: "1", b: "2"})
	if err := w.client.CoreV1().Services(w.ns).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventuallyMessage(a, coreKey("services", w.ns, "web"), "the Service", isDeleted)
	slice = w.setAddress(slice, 0, "10.9.0.11")
	other := slice.DeepCopy()
	other.ObjectMeta = metav1.ObjectMeta{Name: "other-1", Labels: map[string]string{discoveryv1.LabelServiceName: "other"}}
	if _, err := w.client.DiscoveryV1().EndpointSlices(w.ns).Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventuallySent(sliceKey(w.ns, "other-1"), map[string]string{a: "", b: ""})
	marker := w.eventuallyMessage(a, wire.ServiceScopes()[1].Marker(), "the node has all slices", isApplied)
	engine.Resync(a)
	w.setAndAwait(a)
	for key, want := range map[wire.Key]string{key: "1", sliceKey(w.ns, "other-1"): ""} {
		if got := w.sentAddresses(a, key); got != want {
			t.Errorf("%s: %q, want %q", key.Human(), got, want)
		}
	}
	if now := w.heldMessages(a)[wire.ServiceScopes()[1].Marker()]; now.Sequence != marker.Sequence {
		t.Errorf("the marker was published again: %s", now.Op)
	}
	w.createService(w.ns, "other")
	w.eventuallySent(sliceKey(w.ns, "other-1"), map[string]string{a: "11 2", b: "11 2"})
}

// TestEngine_EndpointsByScopeStayInGroup: v1 Endpoints, which nodes get in scopes, are cut like slices: a gateway that asks for all of them
// gets those of its group.
func TestEngine_EndpointsByScopeStayInGroup(t *testing.T) {
	w := newEngineEnv(t)
	a, b := w.createNode("a"), w.createNode("b")
	scope := wire.ScopeKind{Scope: wire.Scope{Version: "v1", Resource: "endpoints"}, Kind: "Endpoints", Namespaced: true}
	var requests serviceRequests
	requests.set(a, true, append(wire.ServiceScopes(), scope)...)
	requests.set(b, true, append(wire.ServiceScopes(), scope)...)
	groups := &fakeGroups{}
	groups.set("a", a)
	groups.set("b", b)
	cfg := requests.config()
	cfg.Groups = groups
	const agent = "desired-with-endpoints"
	w.cluster.ConfigWithRules(t, agent, append(kinds.Rules(), rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"endpoints"}, Verbs: []string{"list", "watch"}}))
	engine := w.startEngine(cfg, &fakeOwnership{}, agent)
	w.createServed("web", annotated("group"), a, b)
	ip := func(address string, node string) map[string]any {
		return map[string]any{"ip": address, "nodeName": node}
	}
	endpoints := map[string]any{
		"apiVersion": "v1", "kind": "Endpoints", "metadata": map[string]any{"name": "web"},
		"subsets": []any{map[string]any{"addresses": []any{ip("10.9.0.1", a), ip("10.9.0.2", b)}, "ports": []any{map[string]any{"port": 80}}}},
	}
	body := []byte(jsonOf(t, endpoints))
	if err := w.client.CoreV1().RESTClient().Post().Namespace(w.ns).Resource("endpoints").Body(body).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	key := coreKey("endpoints", w.ns, "web")
	sent := func(node string) (found []string) {
		if m := w.heldMessages(node)[key]; m.Op != wire.Apply {
			return nil
		}
		var o struct {
			Subsets []struct {
				Addresses []struct {
					IP string `json:"ip"`
				} `json:"addresses"`
			} `json:"subsets"`
		}
		w.decodeObject(node, key, &o)
		for _, s := range o.Subsets {
			for _, a := range s.Addresses {
				found = append(found, a.IP)
			}
		}
		return found
	}
	check := func(want map[string][]string) {
		t.Helper()
		kubetest.Eventually(t, 30*time.Second, func() error {
			for node, addresses := range want {
				if got := sent(node); !slices.Equal(got, addresses) {
					return fmt.Errorf("%s was sent %q, want %q", node, got, addresses)
				}
			}
			return nil
		})
	}
	check(map[string][]string{a: {"10.9.0.1"}, b: {"10.9.0.2"}})
	groups.set("a", b)
	engine.GroupsChanged()
	check(map[string][]string{a: {"10.9.0.1", "10.9.0.2"}, b: {"10.9.0.1", "10.9.0.2"}})
}

// TestEngine_LocalTrafficIsOneMessage: a changed endpoint of a Service that only answers on its own node is one message, for that node.
func TestEngine_LocalTrafficIsOneMessage(t *testing.T) {
	const nodes = 40
	w := newEngineEnv(t)
	var names []string
	for i := range nodes {
		names = append(names, w.createNode(fmt.Sprintf("%02d", i)))
	}
	without := w.createNode("without")
	w.startEngine(desired.Config{}, &fakeOwnership{}, "desired")
	slice := w.createServed("dns", func(s *corev1.Service) {
		s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}, names...)
	key := sliceKey(w.ns, slice.Name)
	want := map[string]string{without: "1"} // it has to know that there is one
	for i, node := range names {
		want[node] = fmt.Sprint(i + 1)
	}
	w.eventuallySent(key, want)
	before := w.countPublished(key)
	slice = w.setAddress(slice, 7, "10.9.0.77")
	w.eventuallySent(key, map[string]string{names[7]: "77"})
	w.setAddress(slice, 9, "10.9.0.99")
	w.eventuallySent(key, map[string]string{names[9]: "99"})
	if got := w.countPublished(key) - before; got != 2 {
		t.Errorf("%d messages for two changes", got)
	}
}
