package desired_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/internal/kubetest"
)

// holds keeps what engines tell of held deletions.
type holds struct {
	mu   sync.Mutex
	last map[string]*wire.Hold
}

func (h *holds) told(node string, hold *wire.Hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last == nil {
		h.last = map[string]*wire.Hold{}
	}
	h.last[node] = hold
}

// of returns the last word about a node; known is false if there was none.
func (h *holds) of(node string) (hold *wire.Hold, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	hold, known = h.last[node]
	return hold, known
}

// eventually waits for a hold of so many pods.
func (h *holds) eventually(w *world, node string, missing int) *wire.Hold {
	w.Helper()
	var hold *wire.Hold
	kubetest.Eventually(w, time.Minute, func() error {
		if hold, _ = h.of(node); hold == nil || hold.Missing != missing {
			return fmt.Errorf("held: %+v, want %d pods", hold, missing)
		}
		return nil
	})
	return hold
}

func (h *holds) eventuallyNone(w *world, node string) {
	w.Helper()
	kubetest.Eventually(w, time.Minute, func() error {
		if hold, known := h.of(node); !known || hold != nil {
			return fmt.Errorf("held: %+v, known %v", hold, known)
		}
		return nil
	})
}

// guarding is a configuration that judges soon, and what it says.
func guarding() (desired.Config, *holds) {
	h := &holds{}
	return desired.Config{
		NoServices: true, OnHold: h.told, ClusterEpoch: "one",
		Guard: desired.Guard{Share: 0.5, Minimum: 5, Settle: 500 * time.Millisecond},
	}, h
}

// pods makes pods named p0, p1 … on a node, each with a ConfigMap of its own.
func (w *world) pods(node string, n int) {
	w.Helper()
	for i := range n {
		name := fmt.Sprint("p", i)
		w.configMap(name, "x")
		w.pod(name, node, mountConfigMap(name))
	}
}

func podNames(n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprint("configmaps p", i), fmt.Sprint("pods p", i))
	}
	return append(names, "serviceaccounts default")
}

func (w *world) annotate(node, name, value string) {
	w.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, name, value)
	if _, err := w.client.CoreV1().Nodes().Patch(w.Context(), node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		w.Fatal(err)
	}
}

// untouched checks that what is made now arrives, and all else that is named is still there.
func (w *world) untouched(node, witness string, want ...string) {
	w.Helper()
	w.configMap(witness, "x")
	w.pod(witness, node, mountConfigMap(witness))
	w.eventuallyLists(node, append(want, "pods "+witness, "configmaps "+witness)...)
}

func TestAMassDeleteWaitsForAWord(t *testing.T) {
	w := newWorld(t)
	w.account("default")
	node := w.node("a")
	w.pods(node, 8)
	cfg, h := guarding()
	first, second := &owners{}, &owners{}
	second.set(node, false)
	w.engine(cfg, first, "desired-a")
	w.eventuallyLists(node, podNames(8)...)
	h.eventuallyNone(w, node)

	for i := range 6 {
		w.deletePod(fmt.Sprint("p", i))
	}
	hold := h.eventually(w, node, 6)
	if hold.Reason != wire.HoldMassDelete || hold.Pods != 8 || len(hold.Some) != 5 {
		t.Errorf("hold %+v", hold)
	}
	w.annotate(node, wire.ConfirmAnnotation, "0123456789")
	w.untouched(node, "witness", podNames(8)...)
	with := append(podNames(8), "pods witness", "configmaps witness")

	// Another replica comes to the same conclusion from Kubernetes and the stream.
	cfg2, h2 := guarding()
	w.engine(cfg2, second, "desired-b")
	first.set(node, false)
	second.set(node, true)
	if again := h2.eventually(w, node, 6); again.Token != hold.Token {
		t.Errorf("after a takeover the hold is %+v, before %+v", again, hold)
	}
	w.eventuallyLists(node, with...)

	w.annotate(node, wire.ConfirmAnnotation, hold.Token)
	left := []string{"pods p6", "configmaps p6", "pods p7", "configmaps p7", "pods witness", "configmaps witness", "serviceaccounts default"}
	w.eventuallyLists(node, left...)
	h2.eventuallyNone(w, node)
	if m := w.held(node)[key("pods", w.ns, "p0")]; m.Leaving.Confirmation() != hold.Token {
		t.Errorf("tombstone of a confirmed deletion: %+v", m)
	}

	// The old word does not confirm what is missed later.
	for i := range 5 {
		w.pod(fmt.Sprint("n", i), node)
		left = append(left, fmt.Sprint("pods n", i))
	}
	w.eventuallyLists(node, left...)
	for i := range 5 {
		w.deletePod(fmt.Sprint("n", i))
	}
	h2.eventually(w, node, 5)
	w.untouched(node, "later", left...)
}

func TestAHoldEndsWhenThePodsComeBackAndWithTime(t *testing.T) {
	w := newWorld(t)
	w.account("default")
	node := w.node("a")
	w.pods(node, 6)
	cfg, h := guarding()
	cfg.Guard.After = 3 * time.Second
	w.engine(cfg, &owners{}, "desired")
	w.eventuallyLists(node, podNames(6)...)
	remove := func() {
		t.Helper()
		for i := range 6 {
			w.deletePod(fmt.Sprint("p", i))
		}
	}
	remove()
	h.eventually(w, node, 6)
	for i := range 6 {
		w.pod(fmt.Sprint("p", i), node, mountConfigMap(fmt.Sprint("p", i)))
	}
	h.eventuallyNone(w, node)
	w.eventuallyLists(node, podNames(6)...)

	remove()
	hold := *h.eventually(w, node, 6)
	hold.Since = time.Now()
	w.annotate(node, wire.HeldAnnotation, jsonOf(t, hold)) // package holds does this
	w.eventuallyLists(node)
	if took := time.Since(hold.Since); took < cfg.Guard.After {
		t.Errorf("let go after %s", took)
	}
	h.eventuallyNone(w, node)
}

// What Kubernetes takes away in its own way is never held: eviction, deletion with a grace period, ends of pods, pods without
// a grace period. The test acts the kubelet, which removes what is published as terminating.
func TestAnOrderlyEndIsNeverHeld(t *testing.T) {
	w := newWorld(t)
	w.account("default")
	cfg, h := guarding()
	w.engine(cfg, &owners{}, "desired")
	pods := w.client.CoreV1().Pods(w.ns)
	all := metav1.ListOptions{}
	for name, remove := range map[string]func(w *world, node string){
		"drain": func(w *world, _ string) {
			for i := range 6 {
				eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: fmt.Sprint("p", i)}}
				if err := w.client.PolicyV1().Evictions(w.ns).Evict(w.Context(), eviction); err != nil {
					w.Fatal(err)
				}
			}
		},
		"namespace's or the replica set's end": func(w *world, _ string) {
			if err := pods.DeleteCollection(w.Context(), metav1.DeleteOptions{}, all); err != nil {
				w.Fatal(err)
			}
		},
		"ended pods": func(w *world, node string) {
			for i := range 6 {
				name := fmt.Sprint("p", i)
				_, err := pods.Patch(w.Context(), name, types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status")
				if err != nil {
					w.Fatal(err)
				}
			}
			for i := range 6 {
				w.eventually(node, key("pods", w.ns, fmt.Sprint("p", i)), "ended", func(m wire.Message) bool { return m.Leaving == wire.Ended })
			}
			if err := pods.DeleteCollection(w.Context(), metav1.DeleteOptions{}, all); err != nil {
				w.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := *w
			w.TB = t
			node := w.node(name[:3])
			for i := range 6 {
				w.pod(fmt.Sprint("p", i), node)
			}
			w.eventuallyLists(node, "pods p0", "pods p1", "pods p2", "pods p3", "pods p4", "pods p5", "serviceaccounts default")
			remove(&w, node)
			kubetest.Eventually(t, time.Minute, func() error {
				for k, m := range w.held(node) {
					if k.Resource == "pods" && m.Op == wire.Apply && m.Leaving == wire.Terminating {
						_ = pods.Delete(t.Context(), k.Name, *metav1.NewDeleteOptions(0)) // gone already, perhaps
					}
				}
				if got := w.lists(node); !slices.Equal(got, nil) {
					return fmt.Errorf("node still has %q", got)
				}
				return nil
			})
			if hold, _ := h.of(node); hold != nil {
				t.Errorf("held: %+v", hold)
			}
		})
	}
}

func TestAGatewayTakenAwayIsNotHeld(t *testing.T) {
	w := newWorld(t)
	w.account("default")
	node := w.node("a")
	w.pods(node, 6)
	cfg, _ := guarding()
	cfg.Grace = 2 * time.Second
	w.engine(cfg, &owners{}, "desired")
	w.eventuallyLists(node, podNames(6)...)
	if err := w.client.CoreV1().Nodes().Delete(t.Context(), node, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		w.deletePod(fmt.Sprint("p", i)) // as Kubernetes' collector does
	}
	w.eventually(node, wire.SnapshotMarker(), "marker's tombstone", deleted)
	kubetest.Eventually(t, time.Minute, func() error {
		if got := w.lists(node); len(got) != 0 {
			return fmt.Errorf("still there: %q", got)
		}
		return nil
	})
}

// A Node that lost its label keeps everything until somebody confirms: it is still there to be asked.
func TestALostLabelIsAsked(t *testing.T) {
	w := newWorld(t)
	w.account("default")
	node := w.node("a")
	w.pods(node, 6)
	cfg, h := guarding()
	cfg.Grace = time.Second
	w.engine(cfg, &owners{}, "desired")
	w.eventuallyLists(node, podNames(6)...)
	label := fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`, identity.EdgeLabel)
	if _, err := w.client.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	h.eventually(w, node, 6)
	label = fmt.Appendf(nil, `{"metadata":{"labels":{%q:""}}}`, identity.EdgeLabel)
	if _, err := w.client.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	h.eventuallyNone(w, node)
	w.eventuallyLists(node, podNames(6)...)
}

// What the API forgot by going back in time is kept whatever its number, for so long as was configured or until confirmed.
func TestPodsUnknownAfterARestoreAreKept(t *testing.T) {
	w := newWorld(t)
	w.account("default")
	node := w.node("a")
	w.pods(node, 6)
	cfg, _ := guarding()
	owner := &owners{}
	w.engine(cfg, owner, "desired-a")
	w.eventuallyLists(node, podNames(6)...)
	owner.set(node, false)
	w.deletePod("p0")

	cfg, h := guarding()
	cfg.ClusterEpoch, cfg.Restore = "one/1", desired.Restore{Since: time.Now(), KeepFor: time.Hour}
	restored := &owners{}
	w.engine(cfg, restored, "desired-b")
	hold := h.eventually(w, node, 1)
	if hold.Reason != wire.HoldRestored {
		t.Errorf("hold %+v", hold)
	}
	w.eventually(node, key("pods", w.ns, "p1"), "the new epoch", func(m wire.Message) bool { return m.ClusterEpoch == "one/1" })
	w.untouched(node, "witness", podNames(6)...)
	restored.set(node, false)

	cfg, h = guarding()
	cfg.ClusterEpoch, cfg.Restore = "one/1", desired.Restore{Since: time.Now(), KeepFor: 3 * time.Second}
	w.engine(cfg, &owners{}, "desired-c")
	h.eventually(w, node, 1)
	w.eventually(node, key("pods", w.ns, "p0"), "tombstone when the time is over", deleted)
	if since := time.Since(cfg.Restore.Since); since < cfg.Restore.KeepFor {
		t.Errorf("let go after %s", since)
	}
	h.eventuallyNone(w, node)
}

// A pod that vanished stays at its node until the history is known to be unbroken since.
func TestNothingVanishesInABrokenHistory(t *testing.T) {
	w := newWorld(t)
	w.account("default")
	node := w.node("a")
	w.pods(node, 6)
	cfg, h := guarding()
	var broken atomic.Bool
	asked := make(chan struct{}, 1)
	cfg.Guard.Share = 0
	cfg.Unbroken = func(time.Time) bool {
		select {
		case asked <- struct{}{}:
		default:
		}
		return !broken.Load()
	}
	broken.Store(true)
	w.engine(cfg, &owners{}, "desired")
	w.eventuallyLists(node, podNames(6)...)
	w.deletePod("p0")
	for range 5 { // two of them after the sweep has settled
		select {
		case <-asked:
		case <-time.After(time.Minute):
			t.Fatal("nobody asks")
		}
	}
	w.untouched(node, "witness", podNames(6)...)
	broken.Store(false)
	w.eventually(node, key("pods", w.ns, "p0"), "tombstone", deleted)
	h.eventuallyNone(w, node)
}

func TestGuardCountsWhatWentAWhileAgo(t *testing.T) {
	w := newWorld(t)
	w.account("default")
	node := w.node("a")
	w.pods(node, 6)
	cfg, h := guarding()
	w.engine(cfg, &owners{}, "desired")
	w.eventuallyLists(node, podNames(6)...)
	for i := range 4 { // one after the other
		name := fmt.Sprint("p", i)
		w.deletePod(name)
		w.eventually(node, key("pods", w.ns, name), "tombstone", deleted)
	}
	w.deletePod("p4")
	h.eventually(w, node, 1)
}
