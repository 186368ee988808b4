package topology_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/objectcache"
	"github.com/frond-edge/frond/controllers/desired/topology"
)

// fakeGroups are the groups of nodes; a node that is not in it is not known.
type fakeGroups map[string]string

func (g fakeGroups) GroupOf(node string) (group string, known bool) {
	group, known = g[node]
	return group, known
}

// world is a cache with one Service "web", its slice and its Endpoints.
type world struct {
	*testing.T
	cache     *objectcache.Cache
	kinds     map[kinds.ID]*kinds.Spec
	groups    fakeGroups
	shares    *topology.Shares
	service   *corev1.Service
	slice     *discoveryv1.EndpointSlice
	endpoints *unstructured.Unstructured
}

var (
	sliceKey     = wire.Key{Group: discoveryv1.GroupName, Resource: "endpointslices", Namespace: "n", Name: "web-1"}
	endpointsKey = wire.Key{Resource: "endpoints", Namespace: "n", Name: "web"}
)

// newWorld makes a world with one endpoint on each of these nodes, whose address is the node's name; "" is no node.
func newWorld(t *testing.T, groups fakeGroups, nodes ...string) *world {
	t.Helper()
	w := &world{T: t, cache: objectcache.New(), kinds: kinds.TableByID(true), groups: groups}
	endpoints := &kinds.Spec{Resource: "endpoints", ScopedOnly: true}
	for _, k := range append(slices.Collect(values(w.kinds)), endpoints) {
		w.cache.Add(objectcache.Kind{Spec: k, Store: toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, k.Indexers())})
	}
	w.shares = topology.NewShares(w.cache, w.groups, zaptest.NewLogger(t))
	w.service = &corev1.Service{}
	w.service.Namespace, w.service.Name = "n", "web"
	w.slice = &discoveryv1.EndpointSlice{}
	w.slice.Namespace, w.slice.Name, w.slice.Labels = "n", "web-1", map[string]string{discoveryv1.LabelServiceName: "web"}
	var addresses []any
	for _, node := range nodes {
		e := discoveryv1.Endpoint{Addresses: []string{node}}
		address := map[string]any{"ip": node}
		if node != "" {
			e.NodeName = &node
			address["nodeName"] = node
		}
		w.slice.Endpoints, addresses = append(w.slice.Endpoints, e), append(addresses, address)
	}
	w.endpoints = &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": "n", "name": "web"},
		"subsets":  []any{map[string]any{"notReadyAddresses": addresses, "ports": []any{map[string]any{"port": int64(80)}}}},
	}}
	w.put("services", w.service)
	w.put("endpointslices", w.slice)
	w.put("endpoints", w.endpoints)
	return w
}

func values[K comparable, V any](m map[K]V) func(func(V) bool) {
	return func(yield func(V) bool) {
		for _, v := range m {
			if !yield(v) {
				return
			}
		}
	}
}

func (w *world) put(resource string, o client.Object) {
	w.Helper()
	for id, k := range w.cache.Kinds() {
		if id.Resource == resource {
			if err := k.Store.Update(o); err != nil {
				w.Fatal(err)
			}
		}
	}
}

func (w *world) annotate(value string) {
	w.service.Annotations = map[string]string{"frond.io/service-topology": value}
	w.put("services", w.service)
}

// addresses returns the addresses of a node's share, or why there is none.
func (w *world) addresses(node string, key wire.Key) string {
	w.Helper()
	o, err := w.cache.Get(key)
	if err != nil {
		w.Fatal(err)
	}
	share, err := w.shares.Of(node, key, o)
	if err != nil {
		return err.Error()
	}
	if !share.Whole() {
		if o, err = share.Cut(o); err != nil {
			w.Fatal(err)
		}
	}
	var found []string
	switch o := o.(type) {
	case *discoveryv1.EndpointSlice:
		if o.Endpoints == nil {
			w.Error("endpoints are null")
		}
		for _, e := range o.Endpoints {
			found = append(found, e.Addresses...)
		}
	case *unstructured.Unstructured:
		subsets, _, _ := unstructured.NestedSlice(o.Object, "subsets")
		for _, s := range subsets {
			if s.(map[string]any)["ports"] == nil {
				w.Error("a subset without its ports")
			}
			addresses, _, _ := unstructured.NestedSlice(s.(map[string]any), "notReadyAddresses")
			for _, a := range addresses {
				found = append(found, a.(map[string]any)["ip"].(string))
			}
		}
	}
	return strings.Join(found, " ")
}

// TestShares_ByPolicy: which endpoints each node is given, of slices and of Endpoints alike.
func TestShares_ByPolicy(t *testing.T) {
	groups := fakeGroups{"a1": "a", "a2": "a", "b1": "b", "free": "", "cloud": ""}
	zones := map[string]string{"a1": "z1", "b1": "z1", "a2": "z2"}
	unknown := topology.ErrGroupUnknown.Error()
	for name, tt := range map[string]struct {
		annotation string
		want       map[string]string
	}{
		"group": {"group", map[string]string{
			"a1": "a1 a2", "a2": "a1 a2", "b1": "b1", "free": "free cloud", "other": unknown,
		}},
		"node":    {"node", map[string]string{"a1": "a1", "b1": "b1", "free": "free", "new": "new", "other": ""}},
		"zone":    {"zone", map[string]string{"a1": "a1 b1", "a2": "a2", "free": "free", "other": ""}},
		"cluster": {"cluster", map[string]string{"a1": "a1 a2 b1 free cloud new ", "other": "a1 a2 b1 free cloud new "}},
		"mistake": {"groups", map[string]string{"a1": "a1", "b1": "b1"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, groups, "a1", "a2", "b1", "free", "cloud", "new", "")
			for node := range groups {
				o := &corev1.Node{}
				o.Name = node
				// A gateway that labels itself gains nothing.
				o.Labels = map[string]string{corev1.LabelTopologyZone: zones[node], "apps.kubeedge.io/belonging-to": "a"}
				w.put("nodes", o)
			}
			w.annotate(tt.annotation)
			for node, want := range tt.want {
				for _, key := range []wire.Key{sliceKey, endpointsKey} {
					if got := w.addresses(node, key); got != want {
						t.Errorf("%s of %s has %q, want %q", key.Human(), node, got, want)
					}
				}
			}
			if len(w.slice.Endpoints) != 7 {
				t.Error("the cache's object was changed")
			}
		})
	}
}

// TestShares_UnknownService: endpoints of a Service that is not known are given to nobody; a slice of none, and one without endpoints, to
// all.
func TestShares_UnknownService(t *testing.T) {
	w := newWorld(t, fakeGroups{"a1": "a"}, "a1", "b1")
	k, _ := w.cache.Kind(kinds.Services())
	if err := k.Store.Delete(w.service); err != nil {
		t.Fatal(err)
	}
	for _, key := range []wire.Key{sliceKey, endpointsKey} {
		if got := w.addresses("a1", key); got != topology.ErrNoService.Error() {
			t.Errorf("%s: %q", key.Human(), got)
		}
	}
	delete(w.slice.Labels, discoveryv1.LabelServiceName)
	if got := w.addresses("a1", sliceKey); got != "a1 b1" {
		t.Errorf("a slice of no Service: %q", got)
	}
	w.endpoints.Object["subsets"] = nil
	if got := w.addresses("a1", endpointsKey); got != "" {
		t.Errorf("Endpoints without any: %q", got)
	}
}

// TestShares_LastAppliedIsLeftOut: kubectl keeps a copy of an object that somebody has applied in an annotation, with all endpoints.
func TestShares_LastAppliedIsLeftOut(t *testing.T) {
	w := newWorld(t, fakeGroups{"a1": "a"}, "a1", "b1")
	w.annotate("group")
	w.slice.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "b1", "other": "x"}
	w.endpoints.SetAnnotations(w.slice.Annotations)
	for _, key := range []wire.Key{sliceKey, endpointsKey} {
		o, err := w.cache.Get(key)
		if err != nil {
			t.Fatal(err)
		}
		share, err := w.shares.Of("a1", key, o)
		if err != nil {
			t.Fatal(err)
		}
		part, err := share.Cut(o)
		if err != nil || strings.Contains(fmt.Sprint(part.GetAnnotations()), "b1") || part.GetAnnotations()["other"] != "x" {
			t.Errorf("%s: %v, %v", key.Human(), part.GetAnnotations(), err)
		}
	}
	if len(w.slice.Annotations) != 2 {
		t.Error("the cache's object was changed")
	}
}

// TestShares_OddEndpoints: Endpoints that cannot be read are not given.
func TestShares_OddEndpoints(t *testing.T) {
	w := newWorld(t, fakeGroups{"a1": "a"}, "a1")
	w.annotate("group")
	for _, odd := range []any{[]any{"text"}, []any{map[string]any{"addresses": []any{"10.0.0.1"}}}, "text"} {
		w.endpoints.Object["subsets"] = odd
		o, err := w.cache.Get(endpointsKey)
		if err != nil {
			t.Fatal(err)
		}
		share, err := w.shares.Of("a1", endpointsKey, o)
		if err == nil {
			o, err = share.Cut(o)
		}
		if u, ok := o.(*unstructured.Unstructured); err == nil && (!ok || u.Object["subsets"] != nil) {
			t.Errorf("%v: given %v", odd, o)
		}
	}
}

// TestShares_LocalTraffic: a kube-proxy sees the same: its node's endpoints, and whether there are any elsewhere.
func TestShares_LocalTraffic(t *testing.T) {
	condition := func(ready, serving, terminating bool) discoveryv1.EndpointConditions {
		return discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
	}
	up, down, draining := condition(true, true, false), condition(false, false, false), condition(false, true, true)
	for name, tt := range map[string]struct {
		conditions map[string]discoveryv1.EndpointConditions
		want       map[string]string
	}{
		"all ready":                   {nil, map[string]string{"a": "a", "b": "b", "z": "a"}},
		"one is not":                  {map[string]discoveryv1.EndpointConditions{"a": down, "b": up, "c": up}, map[string]string{"a": "a b", "b": "b", "z": "b"}},
		"one drains":                  {map[string]discoveryv1.EndpointConditions{"a": draining, "b": up, "c": up}, map[string]string{"a": "a b", "z": "b"}},
		"all drain":                   {map[string]discoveryv1.EndpointConditions{"a": draining, "b": draining, "c": draining}, map[string]string{"b": "a b", "z": "a"}},
		"none":                        {map[string]discoveryv1.EndpointConditions{"a": down, "b": down, "c": down}, map[string]string{"a": "a", "z": ""}},
		"ready is what is not denied": {map[string]discoveryv1.EndpointConditions{"a": {}, "b": down, "c": down}, map[string]string{"a": "a", "b": "a b", "z": "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil, "a", "b", "c")
			w.service.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
			for i := range w.slice.Endpoints {
				w.slice.Endpoints[i].Conditions = tt.conditions[*w.slice.Endpoints[i].NodeName]
			}
			for node, want := range tt.want {
				if got := w.addresses(node, sliceKey); got != want {
					t.Errorf("%s: %q, want %q", node, got, want)
				}
				if got := w.addresses(node, endpointsKey); got != "a b c" {
					t.Errorf("Endpoints, which a kube-proxy does not read: %q", got)
				}
			}
			w.slice.Endpoints[2].Hostname = new("c")
			if got := w.addresses("a", sliceKey); got != "a b c" {
				t.Errorf("with names of DNS: %q", got)
			}
		})
	}
}

// TestShares_CutAnswer: what a program at a node reads through the cloud is cut as well, but not by internalTrafficPolicy.
func TestShares_CutAnswer(t *testing.T) {
	w := newWorld(t, fakeGroups{"a1": "a", "b1": "b"}, "a1", "b1")
	answer := func(node string) int {
		t.Helper()
		o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(w.slice)
		if err != nil {
			t.Fatal(err)
		}
		u := &unstructured.Unstructured{Object: o}
		u.SetKind("EndpointSlice")
		cut, err := w.shares.CutAnswer(node, u)
		if err != nil {
			return -1
		}
		data, err := json.Marshal(cut)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(data), `"nodeName"`)
	}
	w.annotate("group")
	if of, unknown := answer("a1"), answer("other"); of != 1 || unknown != -1 {
		t.Errorf("%d endpoints, and %d where the group is not known", of, unknown)
	}
	w.service.Annotations = nil
	w.service.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	if got := answer("a1"); got != 2 {
		t.Errorf("local traffic: %d", got)
	}
	w.slice.Labels[discoveryv1.LabelServiceName] = "other"
	if got := answer("a1"); got != 0 {
		t.Errorf("of an unknown Service: %d", got)
	}
	w.endpoints.SetKind("Endpoints")
	w.annotate("node")
	cut, err := w.shares.CutAnswer("a1", w.endpoints)
	if u, ok := cut.(*unstructured.Unstructured); err != nil || !ok || strings.Contains(fmt.Sprint(u.Object), "b1") {
		t.Errorf("Endpoints: %v, %v", cut, err)
	}
}

// TestShares_Changes: which objects are compared again, and where.
func TestShares_Changes(t *testing.T) {
	groups := fakeGroups{"a1": "a", "b1": "b", "idle": "b"}
	w := newWorld(t, groups, "a1", "b1")
	services, nodes := w.kinds[kinds.Services()], w.kinds[kinds.ID{Resource: "nodes"}]
	node := func(name, zone string) *corev1.Node {
		o := &corev1.Node{}
		o.Name, o.Labels = name, map[string]string{corev1.LabelTopologyZone: zone}
		w.put("nodes", o)
		return o
	}
	describe := func(c topology.Changes) string {
		if len(c.Everywhere)+len(c.Own) == 0 {
			return ""
		}
		slices.Sort(c.Nodes)
		return fmt.Sprint(len(c.Everywhere), " everywhere, ", len(c.Own), " at ", c.Nodes)
	}
	check := func(what, want string, c topology.Changes) {
		t.Helper()
		if got := describe(c); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	for name := range groups {
		node(name, "")
	}
	before := w.service.DeepCopy()
	check("a new Service", "2 everywhere, 0 at []", w.shares.AfterEvent(services, w.service, nil))
	check("nothing that matters", "", w.shares.AfterEvent(services, w.service, before))
	check("groups that nothing asks for", "", w.shares.GroupsChanged())
	w.annotate("group")
	check("an annotation", "2 everywhere, 0 at []", w.shares.AfterEvent(services, w.service, before))
	check("groups that are the same", "", w.shares.GroupsChanged())
	groups["idle"] = "a"
	check("a node without endpoints", "0 everywhere, 2 at [idle]", w.shares.GroupsChanged())
	groups["b1"] = "a"
	check("a node with endpoints", "2 everywhere, 0 at [b1]", w.shares.GroupsChanged())
	delete(groups, "idle")
	check("a node that is not known any more", "0 everywhere, 2 at [idle]", w.shares.GroupsChanged())
	o, err := w.cache.Get(sliceKey)
	if err != nil {
		t.Fatal(err)
	}
	first, err := w.shares.Of("a1", sliceKey, o)
	if err != nil {
		t.Fatal(err)
	}
	groups["idle"] = "c"
	w.shares.GroupsChanged()
	if second, err := w.shares.Of("a1", sliceKey, o); err != nil || first.Class == second.Class {
		t.Errorf("a share of before is taken for one of now: %q, %v", second.Class, err)
	}
	check("a zone that nothing asks for", "", w.shares.AfterEvent(nodes, node("a1", "z"), node("a1", "")))
	w.annotate("zone")
	check("the zone of a node with endpoints", "2 everywhere, 0 at [a1]", w.shares.AfterEvent(nodes, node("a1", "z"), node("a1", "")))
	check("the zone of another", "0 everywhere, 2 at [idle]", w.shares.AfterEvent(nodes, node("idle", "z"), nil))
	check("another label", "", w.shares.AfterEvent(nodes, node("idle", "z"), node("idle", "z")))
}

// TestShares_UnknownGroupIsAnError: it is not the same as no group.
func TestShares_UnknownGroupIsAnError(t *testing.T) {
	w := newWorld(t, fakeGroups{}, "a1")
	w.annotate("group")
	if _, err := w.shares.Of("a1", sliceKey, w.slice); !errors.Is(err, topology.ErrGroupUnknown) {
		t.Errorf("%v", err)
	}
}
