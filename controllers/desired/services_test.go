package desired_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

// serviceRequests is what nodes have said about Services.
type serviceRequests struct {
	mu      sync.Mutex
	byNeed  map[string]bool
	granted map[string][]wire.ScopeKind
}

func (r *serviceRequests) config() desired.Config {
	return desired.Config{
		Scopes: func(node string) ([]wire.ScopeKind, bool, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			_, told := r.byNeed[node]
			return r.granted[node], told, nil
		},
		ServicesByNeed: func(node string) bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.byNeed[node]
		},
	}
}

func (r *serviceRequests) set(node string, byNeed bool, granted ...wire.ScopeKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byNeed == nil {
		r.byNeed, r.granted = map[string]bool{}, map[string][]wire.ScopeKind{}
	}
	r.byNeed[node], r.granted[node] = byNeed, granted
}

func (w *engineEnv) createService(namespace, name string) {
	w.Helper()
	_, err := w.client.CoreV1().Services(namespace).Create(w.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
}

// liveServices returns a node's Services and EndpointSlices of some namespaces.
func (w *engineEnv) liveServices(node string, namespaces ...string) (found []string) {
	w.Helper()
	for key, m := range w.heldMessages(node) {
		if m.Op == wire.Apply && (key.Resource == "services" || key.Resource == "endpointslices") && slices.Contains(namespaces, key.Namespace) {
			found = append(found, strings.NewReplacer(namespaces[0]+"/", "own/", namespaces[len(namespaces)-1]+"/", "other/").Replace(key.Human()))
		}
	}
	slices.Sort(found)
	return found
}

func (w *engineEnv) eventuallyHasServices(node string, namespaces []string, want ...string) {
	w.Helper()
	slices.Sort(want)
	kubetest.Eventually(w, 20*time.Second, func() error {
		if got := w.liveServices(node, namespaces...); !slices.Equal(got, want) {
			return fmt.Errorf("%s has %q, want %q", node, got, want)
		}
		return nil
	})
}

func sliceHuman(name string) string { return sliceKey("own", name).Human() }

// TestEngine_ServicesByNeed: a node that asks by need gets the Services of its pods' namespaces, and everything only with a scope.
func TestEngine_ServicesByNeed(t *testing.T) {
	w := newEngineEnv(t)
	other := w.cluster.Namespace(t)
	both := []string{w.ns, other}
	w.createAccount("default")
	w.createService(w.ns, "web")
	w.createService(other, "far")
	w.createEndpoints("web-1")
	busy, idle, proxy := w.createNode("busy"), w.createNode("idle"), w.createNode("proxy")
	w.createPod("one", busy)
	var requests serviceRequests
	requests.set(busy, true)
	requests.set(idle, true)
	requests.set(proxy, true, wire.ServiceScopes()...)
	engine := w.startEngine(requests.config(), &fakeOwnership{}, "desired")
	w.eventuallyHasServices(busy, both, "services own/web")
	w.eventuallyHasServices(idle, both)
	w.eventuallyHasServices(proxy, both, "services own/web", "services other/far", sliceHuman("web-1"))
	for _, node := range []string{busy, idle, proxy} {
		w.eventuallyMessage(node, wire.Key{Resource: "services", Namespace: "default", Name: "kubernetes"}, "every node has it", isApplied)
	}
	w.createService(w.ns, "late")
	w.eventuallyHasServices(busy, both, "services own/late", "services own/web")
	if err := w.client.CoreV1().Services(w.ns).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventuallyHasServices(busy, both, "services own/late")
	w.deletePod("one")
	w.eventuallyHasServices(busy, both)
	// A scope on one namespace.
	within := wire.ServiceScopes()[0]
	within.Namespace = other
	requests.set(idle, true, within)
	engine.RefreshScopes(idle)
	w.eventuallyMessage(idle, within.Marker(), "the scope is complete", isApplied)
	w.eventuallyHasServices(idle, both, "services other/far")
	// Another one beside it needs nothing else.
	before, further := w.publishCount(idle, wire.ServiceScopes()[0].Marker()), within
	further.Namespace = w.ns
	requests.set(idle, true, within, further)
	engine.RefreshScopes(idle)
	w.eventuallyMessage(idle, further.Marker(), "the further scope is complete", isApplied)
	w.eventuallyHasServices(idle, both, "services own/late", "services other/far")
	if now := w.publishCount(idle, wire.ServiceScopes()[0].Marker()); now != before {
		t.Errorf("the node was given all Services meanwhile: %d messages of their marker", now-before)
	}
}

// TestEngine_PodWaitsForItsServices: a pod's containers get the addresses of the Services of its namespace when they start, so the
// node has these first.
func TestEngine_PodWaitsForItsServices(t *testing.T) {
	w := newEngineEnv(t)
	w.createAccount("default")
	for i := range 40 {
		w.createService(w.ns, fmt.Sprint("s", i))
	}
	node := w.createNode("a")
	var requests serviceRequests
	requests.set(node, true)
	w.startEngine(requests.config(), &fakeOwnership{}, "desired")
	w.eventuallyMessage(node, wire.ServiceScopes()[0].Marker(), "the node has no Services", isDeleted)
	w.eventuallyHasServices(node, []string{w.ns})
	w.createPod("one", node)
	pod := w.eventuallyMessage(node, wire.Key{Resource: "pods", Namespace: w.ns, Name: "one"}, "the pod", isApplied)
	for key, m := range w.heldMessages(node) {
		if key.Resource == "services" && m.Sequence > pod.Sequence {
			t.Errorf("%s came after the pod", key.Human())
		}
	}
	if got := len(w.liveServices(node, w.ns)); got != 40 {
		t.Errorf("%d Services", got)
	}
}

// TestEngine_SliceGoesToItsFollowers: one change of a slice is one publication for each node that follows slices.
func TestEngine_SliceGoesToItsFollowers(t *testing.T) {
	const nodes, proxies = 200, 10
	w := newEngineEnv(t)
	var requests serviceRequests
	var names []string
	for i := range nodes {
		names = append(names, w.createNode(fmt.Sprint(i)))
		requests.set(names[i], true)
		if i < proxies {
			requests.set(names[i], true, wire.ServiceScopes()...)
		}
	}
	w.startEngine(requests.config(), &fakeOwnership{}, "desired")
	for i, node := range names {
		w.eventuallyMessage(node, wire.ServicesByNeedKey(), "the mark", isApplied)
		if i >= proxies {
			w.eventuallyMessage(node, wire.ServiceScopes()[1].Marker(), "no scope", isDeleted)
		}
	}
	slice, key := w.createEndpoints("fleet"), sliceKey(w.ns, "fleet")
	for _, node := range names[:proxies] {
		w.eventuallyMessage(node, key, "the slice", isApplied)
	}
	before := w.countPublished(key)
	slice = w.setEndpoints(slice, "10.9.2.1")
	for _, node := range names[:proxies] {
		w.eventuallyMessage(node, key, "the change", func(m wire.Message) bool { return m.Version == slice.ResourceVersion })
	}
	if got := w.countPublished(key); before != proxies || got != 2*proxies {
		t.Errorf("%d publications of the slice and %d of its change, want %d each", before, got-before, proxies)
	}
}

// TestEngine_MovesToServicesByNeed: a node of an older version has all Services and their markers. When it says that it asks by
// need, it gets what it asks for, with the markers; only then goes the rest, after its marker. That goes on with another
// replica, wherever the first one ended. When the node is of the older version again, it gets all.
func TestEngine_MovesToServicesByNeed(t *testing.T) {
	w := newEngineEnv(t)
	other := w.cluster.Namespace(t)
	both := []string{w.ns, other}
	w.createAccount("default")
	w.createService(w.ns, "web")
	w.createService(other, "far")
	w.createEndpoints("web-1")
	node := w.createNode("a")
	all := []string{"services own/web", "services other/far", sliceHuman("web-1")}
	var requests serviceRequests // a node that has not been heard is as an older one
	first, second := &fakeOwnership{}, &fakeOwnership{}
	second.setOwned(node, false)
	engine := w.startEngine(requests.config(), first, "desired-a")
	successor := w.startEngine(requests.config(), second, "desired-b")
	mark := w.eventuallyMessage(node, wire.ServicesByNeedKey(), "the mark", isApplied)
	w.eventuallyHasServices(node, both, all...)
	for _, k := range wire.ServiceScopes() {
		if m := w.heldMessages(node)[k.Marker()]; !isApplied(m) || m.Sequence > mark.Sequence {
			t.Errorf("the mark precedes the marker of %s", k.String())
		}
	}
	services := wire.ServiceScopes()[0]
	within := services
	within.Namespace = w.ns
	requests.set(node, true, within)
	engine.RefreshScopes(node)
	w.eventuallyHasServices(node, both, "services own/web")
	now := w.heldMessages(node)
	asked, whole, far := now[within.Marker()], now[services.Marker()], now[wire.Key{Resource: "services", Namespace: other, Name: "far"}]
	if !isApplied(asked) || !isDeleted(whole) || !isDeleted(far) || !isDeleted(now[wire.ServiceScopes()[1].Marker()]) {
		t.Errorf("what was asked for: %s, the whole: %s, the rest: %s", asked.Op, whole.Op, far.Op)
	}
	if asked.Sequence > whole.Sequence || whole.Sequence > far.Sequence {
		t.Errorf("what was asked for was complete at %d, the whole ended at %d, the rest went at %d", asked.Sequence, whole.Sequence, far.Sequence)
	}
	// The node is of the older version again, with another replica.
	first.setOwned(node, false)
	requests.set(node, false)
	second.setOwned(node, true)
	w.eventuallyHasServices(node, both, all...)
	for _, k := range wire.ServiceScopes() {
		w.eventuallyMessage(node, k.Marker(), "all again", isApplied)
	}
	successor.RefreshScopes(node)
	// That replica ends between the end of a marker and of what it covered; the first one goes on.
	second.setOwned(node, false)
	whole = w.heldMessages(node)[services.Marker()]
	if _, err := w.publisher.Publish(t.Context(), wire.Message{Node: node, Key: services.Marker(), Op: wire.Delete, Time: time.Now()}, whole.Sequence); err != nil {
		t.Fatal(err)
	}
	requests.set(node, true, within)
	first.setOwned(node, true)
	w.eventuallyHasServices(node, both, "services own/web")
	w.eventuallyMessage(node, within.Marker(), "what the node asks for", isApplied)
	w.eventuallyMessage(node, wire.ServicesByNeedKey(), "the mark stays", isApplied)
}

// TestEngine_MoveKeepsWhatIsAskedFor: a node whose programs follow all Services sees no message of the move.
func TestEngine_MoveKeepsWhatIsAskedFor(t *testing.T) {
	w := newEngineEnv(t)
	w.createService(w.ns, "web")
	node := w.createNode("a")
	var requests serviceRequests
	requests.set(node, false)
	engine := w.startEngine(requests.config(), &fakeOwnership{}, "desired")
	w.eventuallyMessage(node, wire.ServicesByNeedKey(), "the mark", isApplied)
	before := w.heldMessages(node)
	requests.set(node, true, wire.ServiceScopes()...)
	engine.RefreshScopes(node)
	var marked time.Time
	for _, m := range before {
		if _, marker := wire.ScopeOf(m.Key); marker && m.Time.After(marked) {
			marked = m.Time
		}
	}
	if marked.IsZero() {
		t.Fatal("the stream holds no marker, or not when it was made")
	}
	// In the second of a marker, what is created after it cannot be told from what the stream has lost: see MarkerStale.
	kubetest.Eventually(w, 20*time.Second, func() error {
		if now := time.Now(); !now.Truncate(time.Second).After(marked) {
			return fmt.Errorf("it is %v, in the second of the marker of %v", now, marked)
		}
		return nil
	})
	engine.Resync(node)
	w.createService(w.ns, "later")
	w.eventuallyMessage(node, wire.Key{Resource: "services", Namespace: w.ns, Name: "later"}, "the scope goes on", isApplied)
	for key, was := range before {
		if m := w.heldMessages(node)[key]; (key.Resource == "services" || key.Group == "frond.io") && m.Sequence != was.Sequence {
			t.Errorf("%s was published again: %s", key.Human(), m.Op)
		}
	}
}

// TestEngine_LostRegistryKeepsServices: a node of which it is not known any more what it asked for keeps what it has.
func TestEngine_LostRegistryKeepsServices(t *testing.T) {
	w := newEngineEnv(t)
	w.createService(w.ns, "web")
	node := w.createNode("a")
	var requests serviceRequests
	requests.set(node, true, wire.ServiceScopes()[0])
	first := &fakeOwnership{}
	w.startEngine(requests.config(), first, "desired-a")
	w.eventuallyMessage(node, wire.ServiceScopes()[1].Marker(), "slices are not asked for", isDeleted)
	first.setOwned(node, false)
	var lost serviceRequests
	w.startEngine(lost.config(), &fakeOwnership{}, "desired-b")
	w.setAndAwait(node)
	if m := w.heldMessages(node)[wire.ServiceScopes()[0].Marker()]; !isApplied(m) {
		t.Error("the scope was withdrawn")
	}
	if m := w.heldMessages(node)[wire.ServiceScopes()[1].Marker()]; isApplied(m) {
		t.Error("the node is given all slices again")
	}
	w.eventuallyHasServices(node, []string{w.ns}, "services own/web")
}

// setAndAwait waits until a node's engine has worked off a load: a change made after it has arrived.
func (w *engineEnv) setAndAwait(node string) {
	w.Helper()
	w.createAccount("default")
	w.createPod("witness", node)
	w.eventuallyMessage(node, wire.Key{Resource: "pods", Namespace: w.ns, Name: "witness"}, "a later change", isApplied)
	kubetest.Eventually(w, 20*time.Second, func() error {
		if w.Context().Err() != nil {
			return context.Canceled
		}
		if m := w.heldMessages(node)[wire.SnapshotMarker()]; !isApplied(m) {
			return errors.New("no snapshot")
		}
		return nil
	})
}
