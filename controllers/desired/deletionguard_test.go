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

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

// holdRecorder records the holds that engines report.
type holdRecorder struct {
	mu   sync.Mutex
	last map[string]*wire.Hold
}

func (h *holdRecorder) recordHold(node string, hold *wire.Hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last == nil {
		h.last = map[string]*wire.Hold{}
	}
	h.last[node] = hold
}

// lastHold returns the last report about a node; known is false if there was none.
func (h *holdRecorder) lastHold(node string) (hold *wire.Hold, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	hold, known = h.last[node]
	return hold, known
}

// eventuallyHeld waits for a hold of that many pods.
func (h *holdRecorder) eventuallyHeld(w *engineEnv, node string, missing int) *wire.Hold {
	w.Helper()
	var hold *wire.Hold
	kubetest.Eventually(w, time.Minute, func() error {
		if hold, _ = h.lastHold(node); hold == nil || hold.Missing != missing {
			return fmt.Errorf("held: %+v, want %d pods", hold, missing)
		}
		return nil
	})
	return hold
}

func (h *holdRecorder) eventuallyNone(w *engineEnv, node string) {
	w.Helper()
	kubetest.Eventually(w, time.Minute, func() error {
		if hold, known := h.lastHold(node); !known || hold != nil {
			return fmt.Errorf("held: %+v, known %v", hold, known)
		}
		return nil
	})
}

// recordedGuardConfig returns a configuration whose guard settles quickly, and the recorder of its reports.
func recordedGuardConfig() (desired.Config, *holdRecorder) {
	h := &holdRecorder{}
	return desired.Config{
		NoServices: true, OnHold: h.recordHold, ClusterEpoch: "one",
		Guard: desired.Guard{Share: 0.5, Minimum: 5, Settle: 500 * time.Millisecond},
	}, h
}

// createPods creates pods named p0, p1 … on a node, each with a ConfigMap of its own.
func (w *engineEnv) createPods(node string, n int) {
	w.Helper()
	for i := range n {
		name := fmt.Sprint("p", i)
		w.createConfigMap(name, "x")
		w.createPod(name, node, mountConfigMap(name))
	}
}

func podNames(n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprint("configmaps p", i), fmt.Sprint("pods p", i))
	}
	return append(names, "serviceaccounts default")
}

func (w *engineEnv) annotateNode(node, name, value string) {
	w.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, name, value)
	if _, err := w.client.CoreV1().Nodes().Patch(w.Context(), node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		w.Fatal(err)
	}
}

// checkUntouched checks that a newly created object arrives, and that all other named objects are still there.
func (w *engineEnv) checkUntouched(node, witness string, want ...string) {
	w.Helper()
	w.createConfigMap(witness, "x")
	w.createPod(witness, node, mountConfigMap(witness))
	w.eventuallyHasObjects(node, append(want, "pods "+witness, "configmaps "+witness)...)
}

func TestGuard_MassDeleteWaitsForConfirmation(t *testing.T) {
	w := newEngineEnv(t)
	w.createAccount("default")
	node := w.createNode("a")
	w.createPods(node, 8)
	cfg, h := recordedGuardConfig()
	first, second := &fakeOwnership{}, &fakeOwnership{}
	second.setOwned(node, false)
	w.startEngine(cfg, first, "desired-a")
	w.eventuallyHasObjects(node, podNames(8)...)
	h.eventuallyNone(w, node)

	for i := range 6 {
		w.deletePod(fmt.Sprint("p", i))
	}
	hold := h.eventuallyHeld(w, node, 6)
	if hold.Reason != wire.HoldMassDelete || hold.Pods != 8 || len(hold.MissingSample) != 5 {
		t.Errorf("hold %+v", hold)
	}
	w.annotateNode(node, names.AnnotationConfirmDeletions, "0123456789")
	w.checkUntouched(node, "witness", podNames(8)...)
	with := append(podNames(8), "pods witness", "configmaps witness")

	// Another replica reaches the same result from Kubernetes and the stream.
	cfg2, h2 := recordedGuardConfig()
	w.startEngine(cfg2, second, "desired-b")
	first.setOwned(node, false)
	second.setOwned(node, true)
	if again := h2.eventuallyHeld(w, node, 6); again.Token != hold.Token {
		t.Errorf("after a takeover the hold is %+v, before %+v", again, hold)
	}
	w.eventuallyHasObjects(node, with...)

	w.annotateNode(node, names.AnnotationConfirmDeletions, hold.Token)
	left := []string{"pods p6", "configmaps p6", "pods p7", "configmaps p7", "pods witness", "configmaps witness", "serviceaccounts default"}
	w.eventuallyHasObjects(node, left...)
	h2.eventuallyNone(w, node)
	if m := w.heldMessages(node)[coreKey("pods", w.ns, "p0")]; m.DeletionReason.ConfirmationToken() != hold.Token {
		t.Errorf("tombstone of a confirmed deletion: %+v", m)
	}

	// The old token does not confirm later losses.
	for i := range 5 {
		w.createPod(fmt.Sprint("n", i), node)
		left = append(left, fmt.Sprint("pods n", i))
	}
	w.eventuallyHasObjects(node, left...)
	for i := range 5 {
		w.deletePod(fmt.Sprint("n", i))
	}
	h2.eventuallyHeld(w, node, 5)
	w.checkUntouched(node, "later", left...)
}

func TestGuard_HoldEndsWithPodsOrTime(t *testing.T) {
	w := newEngineEnv(t)
	w.createAccount("default")
	node := w.createNode("a")
	w.createPods(node, 6)
	cfg, h := recordedGuardConfig()
	cfg.Guard.After = 3 * time.Second
	w.startEngine(cfg, &fakeOwnership{}, "desired")
	w.eventuallyHasObjects(node, podNames(6)...)
	remove := func() {
		t.Helper()
		for i := range 6 {
			w.deletePod(fmt.Sprint("p", i))
		}
	}
	remove()
	h.eventuallyHeld(w, node, 6)
	for i := range 6 {
		w.createPod(fmt.Sprint("p", i), node, mountConfigMap(fmt.Sprint("p", i)))
	}
	h.eventuallyNone(w, node)
	w.eventuallyHasObjects(node, podNames(6)...)

	remove()
	hold := *h.eventuallyHeld(w, node, 6)
	hold.Since = time.Now()
	w.annotateNode(node, names.AnnotationHeldDeletions, jsonOf(t, hold)) // package holds does this
	w.eventuallyHasObjects(node)
	if took := time.Since(hold.Since); took < cfg.Guard.After {
		t.Errorf("let go after %s", took)
	}
	h.eventuallyNone(w, node)
}

// Orderly removals by Kubernetes are never held: eviction, deletion with a grace period, ends of pods, pods without a
// grace period. The test plays the kubelet, which removes what is published as terminating.
func TestGuard_OrderlyEndIsNeverHeld(t *testing.T) {
	w := newEngineEnv(t)
	w.createAccount("default")
	cfg, h := recordedGuardConfig()
	w.startEngine(cfg, &fakeOwnership{}, "desired")
	pods := w.client.CoreV1().Pods(w.ns)
	all := metav1.ListOptions{}
	for name, remove := range map[string]func(w *engineEnv, node string){
		"drain": func(w *engineEnv, _ string) {
			for i := range 6 {
				eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: fmt.Sprint("p", i)}}
				if err := w.client.PolicyV1().Evictions(w.ns).Evict(w.Context(), eviction); err != nil {
					w.Fatal(err)
				}
			}
		},
		"namespace's or the replica set's end": func(w *engineEnv, _ string) {
			if err := pods.DeleteCollection(w.Context(), metav1.DeleteOptions{}, all); err != nil {
				w.Fatal(err)
			}
		},
		"ended pods": func(w *engineEnv, node string) {
			for i := range 6 {
				name := fmt.Sprint("p", i)
				_, err := pods.Patch(w.Context(), name, types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status")
				if err != nil {
					w.Fatal(err)
				}
			}
			for i := range 6 {
				w.eventuallyMessage(node, coreKey("pods", w.ns, fmt.Sprint("p", i)), "ended", func(m wire.Message) bool { return m.DeletionReason == wire.DeletionPodEnded })
			}
			if err := pods.DeleteCollection(w.Context(), metav1.DeleteOptions{}, all); err != nil {
				w.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := *w
			w.TB = t
			node := w.createNode(name[:3])
			for i := range 6 {
				w.createPod(fmt.Sprint("p", i), node)
			}
			w.eventuallyHasObjects(node, "pods p0", "pods p1", "pods p2", "pods p3", "pods p4", "pods p5", "serviceaccounts default")
			remove(&w, node)
			kubetest.Eventually(t, time.Minute, func() error {
				for k, m := range w.heldMessages(node) {
					if k.Resource == "pods" && m.Op == wire.Apply && m.DeletionReason == wire.DeletionTerminating {
						_ = pods.Delete(t.Context(), k.Name, *metav1.NewDeleteOptions(0)) // gone already, perhaps
					}
				}
				if got := w.liveObjects(node); !slices.Equal(got, nil) {
					return fmt.Errorf("node still has %q", got)
				}
				return nil
			})
			if hold, _ := h.lastHold(node); hold != nil {
				t.Errorf("held: %+v", hold)
			}
		})
	}
}

func TestGuard_DeletedNodeIsNotHeld(t *testing.T) {
	w := newEngineEnv(t)
	w.createAccount("default")
	node := w.createNode("a")
	w.createPods(node, 6)
	cfg, _ := recordedGuardConfig()
	cfg.Grace = 2 * time.Second
	w.startEngine(cfg, &fakeOwnership{}, "desired")
	w.eventuallyHasObjects(node, podNames(6)...)
	if err := w.client.CoreV1().Nodes().Delete(t.Context(), node, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		w.deletePod(fmt.Sprint("p", i)) // as Kubernetes' collector does
	}
	w.eventuallyMessage(node, wire.SnapshotMarker(), "marker's tombstone", isDeleted)
	kubetest.Eventually(t, time.Minute, func() error {
		if got := w.liveObjects(node); len(got) != 0 {
			return fmt.Errorf("still there: %q", got)
		}
		return nil
	})
}

// A Node that lost its label keeps everything until an operator confirms: the Node still exists to carry the confirmation.
func TestGuard_LostEdgeLabelIsHeld(t *testing.T) {
	w := newEngineEnv(t)
	w.createAccount("default")
	node := w.createNode("a")
	w.createPods(node, 6)
	cfg, h := recordedGuardConfig()
	cfg.Grace = time.Second
	w.startEngine(cfg, &fakeOwnership{}, "desired")
	w.eventuallyHasObjects(node, podNames(6)...)
	label := fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`, names.LabelEdge)
	if _, err := w.client.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	h.eventuallyHeld(w, node, 6)
	label = fmt.Appendf(nil, `{"metadata":{"labels":{%q:""}}}`, names.LabelEdge)
	if _, err := w.client.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	h.eventuallyNone(w, node)
	w.eventuallyHasObjects(node, podNames(6)...)
}

// Pods that the API lost by going back in time are kept whatever their number, for the configured time or until confirmed.
func TestGuard_PodsUnknownAfterRestoreAreHeld(t *testing.T) {
	w := newEngineEnv(t)
	w.createAccount("default")
	node := w.createNode("a")
	w.createPods(node, 6)
	cfg, _ := recordedGuardConfig()
	owner := &fakeOwnership{}
	w.startEngine(cfg, owner, "desired-a")
	w.eventuallyHasObjects(node, podNames(6)...)
	owner.setOwned(node, false)
	w.deletePod("p0")

	cfg, h := recordedGuardConfig()
	cfg.ClusterEpoch, cfg.Restore = "one/1", desired.Restore{Since: time.Now(), KeepFor: time.Hour}
	restored := &fakeOwnership{}
	w.startEngine(cfg, restored, "desired-b")
	hold := h.eventuallyHeld(w, node, 1)
	if hold.Reason != wire.HoldRestored {
		t.Errorf("hold %+v", hold)
	}
	w.eventuallyMessage(node, coreKey("pods", w.ns, "p1"), "the new epoch", func(m wire.Message) bool { return m.ClusterEpoch == "one/1" })
	w.checkUntouched(node, "witness", podNames(6)...)
	restored.setOwned(node, false)

	cfg, h = recordedGuardConfig()
	cfg.ClusterEpoch, cfg.Restore = "one/1", desired.Restore{Since: time.Now(), KeepFor: 3 * time.Second}
	w.startEngine(cfg, &fakeOwnership{}, "desired-c")
	h.eventuallyHeld(w, node, 1)
	w.eventuallyMessage(node, coreKey("pods", w.ns, "p0"), "tombstone when the time is over", isDeleted)
	if since := time.Since(cfg.Restore.Since); since < cfg.Restore.KeepFor {
		t.Errorf("let go after %s", since)
	}
	h.eventuallyNone(w, node)
}

// A vanished pod stays at its node until the history is verified to be unbroken since.
func TestGuard_WaitsForVerifiedHistory(t *testing.T) {
	w := newEngineEnv(t)
	w.createAccount("default")
	node := w.createNode("a")
	w.createPods(node, 6)
	cfg, h := recordedGuardConfig()
	var broken atomic.Bool
	asked := make(chan struct{}, 1)
	cfg.Guard.Share = 0
	cfg.VerifiedSince = func(time.Time) bool {
		select {
		case asked <- struct{}{}:
		default:
		}
		return !broken.Load()
	}
	broken.Store(true)
	w.startEngine(cfg, &fakeOwnership{}, "desired")
	w.eventuallyHasObjects(node, podNames(6)...)
	w.deletePod("p0")
	for range 5 { // two of them after the sweep has settled
		select {
		case <-asked:
		case <-time.After(time.Minute):
			t.Fatal("nobody asks")
		}
	}
	w.checkUntouched(node, "witness", podNames(6)...)
	broken.Store(false)
	w.eventuallyMessage(node, coreKey("pods", w.ns, "p0"), "tombstone", isDeleted)
	h.eventuallyNone(w, node)
}

func TestGuard_CountsRecentLosses(t *testing.T) {
	w := newEngineEnv(t)
	w.createAccount("default")
	node := w.createNode("a")
	w.createPods(node, 6)
	cfg, h := recordedGuardConfig()
	w.startEngine(cfg, &fakeOwnership{}, "desired")
	w.eventuallyHasObjects(node, podNames(6)...)
	for i := range 4 { // one after the other
		name := fmt.Sprint("p", i)
		w.deletePod(name)
		w.eventuallyMessage(node, coreKey("pods", w.ns, name), "tombstone", isDeleted)
	}
	w.deletePod("p4")
	h.eventuallyHeld(w, node, 1)
}
