package nodes_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/kubeversion"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/nodes"
	"github.com/frond-edge/frond/internal/kubetest"
)

var shared kubetest.Shared

func TestMain(m *testing.M) { shared.Verify(m) }

// owner owns all nodes, or none.
type owner struct {
	mu      sync.Mutex
	none    bool          // guarded by mu
	changed chan struct{} // guarded by mu
	revoked bool          // guarded by mu
	// group says how long the pods stay, and nothing while it is not known; guarded by mu.
	group   string
	known   bool
	version string // of the Kubernetes API; guarded by mu
}

// autonomous has what a Node says itself, or else a group.
func (o *owner) autonomous(node *corev1.Node) (value, group string, known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if own := node.Annotations[wire.AutonomyAnnotation]; own != "" {
		return own, "", true
	}
	if o.group == "" || !o.known {
		return "", "", o.known
	}
	return o.group, "north", true
}

// say has the group say something; nobody knows whether there is one before.
func (o *owner) say(value string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.group, o.known = value, true
}

func (o *owner) isRevoked(string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.revoked
}

func (o *owner) revoke(is bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.revoked = is
}

func (o *owner) kubernetes() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.version
}

func (o *owner) upgrade(version string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.version = version
}

func owning(all bool) *owner { return &owner{none: !all, changed: make(chan struct{})} }

func (o *owner) Owns(string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.none
}

func (o *owner) Changed() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed
}

func (*owner) Fresh() bool { return true }

func (o *owner) turn() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.none = !o.none
	close(o.changed)
	o.changed = make(chan struct{})
}

// fine is a node that lacks nothing.
func fine() nodes.Progress { return nodes.Progress{Known: true} }

type world struct {
	*testing.T
	client kubernetes.Interface
	name   string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	cluster := shared.Cluster(t)
	return &world{T: t, client: cluster.Client(t), name: cluster.Namespace(t)}
}

func (w *world) monitor(o *owner) *nodes.Monitor {
	w.Helper()
	return w.monitorWith(o, nil, func(m *nodes.Monitor) { m.Hurry(200*time.Millisecond, 600*time.Millisecond) })
}

// monitorWith runs a Monitor that is set up before it starts.
func (w *world) monitorWith(o *owner, metrics prometheus.Registerer, prepare func(*nodes.Monitor)) *nodes.Monitor {
	w.Helper()
	config := shared.Cluster(w).Limited(w, "frond-nodes-test", nodes.Rules())
	objects, err := cache.New(config, cache.Options{})
	if err != nil {
		w.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		w.Fatal(err)
	}
	monitor := nodes.New(client, objects, o, o.isRevoked, o.autonomous, o.kubernetes, metrics, zaptest.NewLogger(w))
	prepare(monitor)
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return objects.Start(gctx) })
	g.Go(func() error { return monitor.Start(gctx) })
	w.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			w.Errorf("monitor: %v", err)
		}
	})
	return monitor
}

func (w *world) create() {
	w.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.name}}
	if _, err := w.client.CoreV1().Nodes().Create(w.Context(), node, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		_ = w.client.CoreV1().Nodes().Delete(context.WithoutCancel(w.Context()), w.name, metav1.DeleteOptions{})
	})
}

// beat sends heartbeats until the condition holds.
func (w *world) beat(m *nodes.Monitor, healthy bool, condition func() error) {
	w.Helper()
	kubetest.Eventually(w, 20*time.Second, func() error {
		m.Beat(w.name, wire.Beat{Healthy: healthy}, fine)
		return condition()
	})
}

func (w *world) says(status corev1.ConditionStatus, reason string) func() error {
	return func() error {
		node, err := w.client.CoreV1().Nodes().Get(w.Context(), w.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if _, ok := node.Labels["node-role.kubernetes.io/edge"]; !ok {
			return errors.New("no label")
		}
		for _, c := range node.Status.Conditions {
			if c.Type == nodes.Connected && c.Status == status && c.Reason == reason && !c.LastTransitionTime.IsZero() {
				return nil
			}
		}
		return fmt.Errorf("conditions %v, want %s %s", node.Status.Conditions, status, reason)
	}
}

func (w *world) lease() (*coordinationv1.Lease, error) {
	return w.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(w.Context(), w.name, metav1.GetOptions{})
}

func TestHeartbeatsKeepTheLease(t *testing.T) {
	w := newWorld(t)
	m := w.monitor(owning(true))
	m.Beat(w.name, wire.Beat{Healthy: true}, fine) // before there is a Node
	w.create()
	w.beat(m, true, w.says(corev1.ConditionTrue, "HeartbeatsArrive"))
	var first *coordinationv1.Lease
	w.beat(m, true, func() (err error) {
		first, err = w.lease()
		return err
	})
	if *first.Spec.HolderIdentity != w.name || *first.Spec.LeaseDurationSeconds != 40 || len(first.OwnerReferences) != 1 {
		t.Errorf("lease %+v", first)
	}
	began, renewals := time.Now(), 0
	last := first.Spec.RenewTime.Time
	w.beat(m, true, func() error {
		lease, err := w.lease()
		if err != nil {
			return err
		}
		if at := lease.Spec.RenewTime.Time; at.After(last) {
			if gap := at.Sub(last); gap < 190*time.Millisecond {
				t.Errorf("renewed again after %v", gap)
			}
			last = at
			renewals++
		}
		if renewals < 4 {
			return fmt.Errorf("%d renewals in %v", renewals, time.Since(began))
		}
		return nil
	})

	w.beat(m, false, w.says(corev1.ConditionTrue, "KubeletUnwell"))
	unwell, err := w.lease()
	if err != nil {
		t.Fatal(err)
	}
	stop := time.Now().Add(500 * time.Millisecond)
	w.beat(m, false, func() error {
		lease, err := w.lease()
		if err == nil && !lease.Spec.RenewTime.Equal(unwell.Spec.RenewTime) {
			t.Error("the lease of an unwell kubelet was renewed")
		}
		if time.Now().Before(stop) {
			return errors.New("watching")
		}
		return err
	})
	kubetest.Eventually(t, 10*time.Second, w.says(corev1.ConditionFalse, "NoHeartbeat"))
	w.beat(m, true, w.says(corev1.ConditionTrue, "HeartbeatsArrive"))
	kubetest.Eventually(t, 10*time.Second, w.says(corev1.ConditionFalse, "NoHeartbeat")) // and once more
}

func TestANewOwnerNoticesASilentNode(t *testing.T) {
	w := newWorld(t)
	w.create()
	first, second := owning(true), owning(false)
	a := w.monitor(first)
	w.beat(a, true, w.says(corev1.ConditionTrue, "HeartbeatsArrive"))
	b := w.monitor(second)
	b.Beat(w.name, wire.Beat{Healthy: true}, fine) // not its node
	first.turn()
	second.turn()
	kubetest.Eventually(t, 10*time.Second, w.says(corev1.ConditionFalse, "NoHeartbeat"))
}

// A revoked node shows at once that it is, and so it stays though nobody is heard of it; when it has joined anew, it shows that it is
// connected.
func TestARevokedNodeSaysSo(t *testing.T) {
	w, o := newWorld(t), owning(true)
	w.create()
	m := w.monitorWith(o, nil, func(*nodes.Monitor) {}) // 30 s of silence do not come to pass
	w.beat(m, true, w.says(corev1.ConditionTrue, "HeartbeatsArrive"))
	o.revoke(true)
	m.Look(w.name)
	kubetest.Eventually(t, 20*time.Second, w.says(corev1.ConditionFalse, "Revoked"))
	o.revoke(false)
	w.beat(m, true, w.says(corev1.ConditionTrue, "HeartbeatsArrive"))
}

// TestMonitor_NodeTellsOfAnUntestedKubernetes: the condition follows the version of the Kubernetes API.
func TestMonitor_NodeTellsOfAnUntestedKubernetes(t *testing.T) {
	w := newWorld(t)
	w.create()
	o := owning(true)
	m := w.monitor(o)
	says := func(status corev1.ConditionStatus, reason string) {
		t.Helper()
		kubetest.Eventually(t, 30*time.Second, func() error {
			m.Beat(w.name, wire.Beat{Healthy: true}, fine)
			node, err := w.client.CoreV1().Nodes().Get(t.Context(), w.name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range node.Status.Conditions {
				if c.Type == nodes.VersionSupported && c.Status == status && c.Reason == reason {
					return nil
				}
			}
			return fmt.Errorf("no condition %s %s of reason %s in %v", nodes.VersionSupported, status, reason, node.Status.Conditions)
		})
	}
	o.upgrade("v1.20.1")
	says(corev1.ConditionFalse, kubeversion.ReasonOlder)
	o.upgrade("v1.37.9")
	says(corev1.ConditionTrue, kubeversion.ReasonTested)
}

// The owner before, paused perhaps, has its last word after the takeover: the node counts as silent all the same.
func TestALateWordOfTheOwnerBefore(t *testing.T) {
	w := newWorld(t)
	w.create()
	m := w.monitor(owning(true))
	w.beat(m, true, w.says(corev1.ConditionTrue, "HeartbeatsArrive"))
	kubetest.Eventually(t, 10*time.Second, w.says(corev1.ConditionFalse, "NoHeartbeat"))
	w.connected()
	kubetest.Eventually(t, 10*time.Second, w.says(corev1.ConditionFalse, "NoHeartbeat"))
}

// connected writes that the node is.
func (w *world) connected() {
	w.Helper()
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":"True","reason":"HeartbeatsArrive","lastTransitionTime":%q}]}}`,
		nodes.Connected, time.Now().UTC().Format(time.RFC3339))
	if _, err := w.client.CoreV1().Nodes().PatchStatus(w.Context(), w.name, []byte(patch)); err != nil {
		w.Fatal(err)
	}
}
