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
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/nodes"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

var shared kubetest.Shared

func TestMain(m *testing.M) { shared.Verify(m) }

// fakeOwner owns all nodes, or none.
type fakeOwner struct {
	mu       sync.Mutex
	ownsNone bool          // guarded by mu
	changed  chan struct{} // guarded by mu
	revoked  bool          // guarded by mu
	// group is the stay of the pods; groupLoaded: it is known; guarded by mu.
	group       string
	groupLoaded bool
	version     string // of the Kubernetes API; guarded by mu
}

// autonomyOf returns the Node's own annotation, or else that of a group.
func (o *fakeOwner) autonomyOf(node *corev1.Node) (value, group string, known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if own := node.Annotations[names.AnnotationAutonomy]; own != "" {
		return own, "", true
	}
	if o.group == "" || !o.groupLoaded {
		return "", "", o.groupLoaded
	}
	return o.group, "north", true
}

// setAutonomy sets the group's annotation; before that it is not known whether there is a group.
func (o *fakeOwner) setAutonomy(value string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.group, o.groupLoaded = value, true
}

func (o *fakeOwner) isRevoked(string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.revoked
}

func (o *fakeOwner) setRevoked(is bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.revoked = is
}

func (o *fakeOwner) kubernetesVersion() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.version
}

func (o *fakeOwner) setVersion(version string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.version = version
}

func newFakeOwner(all bool) *fakeOwner {
	return &fakeOwner{ownsNone: !all, changed: make(chan struct{})}
}

func (o *fakeOwner) Owns(string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.ownsNone
}

func (o *fakeOwner) Changed() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed
}

func (*fakeOwner) LeaseValid() bool { return true }

func (*fakeOwner) Term(string) uint64 { return 1 }

func (o *fakeOwner) toggleOwnership() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ownsNone = !o.ownsNone
	close(o.changed)
	o.changed = make(chan struct{})
}

// completeProgress returns the progress of a node that lacks nothing.
func completeProgress() nodes.Progress { return nodes.Progress{Loaded: true} }

// longestPeriod is the budget of the tests' monitors: the period of one node is this long, as it is less than a second.
const longestPeriod = 400 * time.Millisecond

type monitorEnv struct {
	*testing.T
	client kubernetes.Interface
	name   string
}

func newMonitorEnv(t *testing.T) *monitorEnv {
	t.Helper()
	cluster := shared.Cluster(t)
	return &monitorEnv{T: t, client: cluster.Client(t), name: cluster.Namespace(t)}
}

func (w *monitorEnv) startMonitor(o *fakeOwner) *nodes.Monitor {
	w.Helper()
	return w.startMonitorWith(o, nil, func(m *nodes.Monitor) { m.ShortenTimes(200*time.Millisecond, 600*time.Millisecond) })
}

// startMonitorWith runs a Monitor that prepare changes before it starts.
func (w *monitorEnv) startMonitorWith(o *fakeOwner, metrics prometheus.Registerer, prepare func(*nodes.Monitor)) *nodes.Monitor {
	w.Helper()
	config := shared.Cluster(w).ConfigWithRules(w, "frond-nodes-test", nodes.Rules())
	objects, err := cache.New(config, cache.Options{})
	if err != nil {
		w.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		w.Fatal(err)
	}
	monitor := nodes.New(nodes.LeaseBudget{PerSecond: 1, LongestPeriod: longestPeriod}, client, objects, o, o.isRevoked, o.autonomyOf, o.kubernetesVersion, metrics, zaptest.NewLogger(w))
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

func (w *monitorEnv) createNode() {
	w.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.name}}
	if _, err := w.client.CoreV1().Nodes().Create(w.Context(), node, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		_ = w.client.CoreV1().Nodes().Delete(context.WithoutCancel(w.Context()), w.name, metav1.DeleteOptions{})
	})
}

// beatUntil sends heartbeats until the condition holds.
func (w *monitorEnv) beatUntil(m *nodes.Monitor, healthy bool, condition func() error) {
	w.Helper()
	kit.Succeeds(w, 20*time.Second, func() error {
		m.RecordHeartbeat(w.name, wire.Heartbeat{Healthy: healthy}, completeProgress)
		return condition()
	})
}

func (w *monitorEnv) hasConnected(status corev1.ConditionStatus, reason string) func() error {
	return func() error {
		node, err := w.client.CoreV1().Nodes().Get(w.Context(), w.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if _, ok := node.Labels["node-role.kubernetes.io/edge"]; !ok {
			return errors.New("no label")
		}
		for _, c := range node.Status.Conditions {
			if c.Type == names.ConditionConnected && c.Status == status && c.Reason == reason && !c.LastTransitionTime.IsZero() {
				return nil
			}
		}
		return fmt.Errorf("conditions %v, want %s %s", node.Status.Conditions, status, reason)
	}
}

func (w *monitorEnv) getLease() (*coordinationv1.Lease, error) {
	return w.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(w.Context(), w.name, metav1.GetOptions{})
}

// checkRenewals sends heartbeats in close succession, and checks that the Lease is renewed by its period.
func (w *monitorEnv) checkRenewals(m *nodes.Monitor, last time.Time) {
	w.Helper()
	const wanted = 5
	var settled time.Time // the first interval is random
	renewals := 0
	w.beatUntil(m, true, func() error {
		lease, err := w.getLease()
		if err != nil {
			return err
		}
		if at := lease.Spec.RenewTime.Time; at.After(last) {
			last = at
			if settled.IsZero() {
				settled = at
			} else {
				renewals++
			}
		}
		if renewals < wanted {
			return fmt.Errorf("%d renewals", renewals)
		}
		return nil
	})
	if took := last.Sub(settled); took < wanted*longestPeriod*7/10 { // the first may be late
		w.Errorf("%d renewals in %v, want one in %v", renewals, took, longestPeriod)
	}
}

func TestMonitor_RenewsLeaseWithHeartbeats(t *testing.T) {
	w := newMonitorEnv(t)
	metrics := prometheus.NewRegistry()
	m := w.startMonitorWith(newFakeOwner(true), metrics, func(m *nodes.Monitor) { m.ShortenTimes(200*time.Millisecond, 600*time.Millisecond) })
	m.RecordHeartbeat(w.name, wire.Heartbeat{Healthy: true}, completeProgress) // before there is a Node
	w.createNode()
	w.beatUntil(m, true, w.hasConnected(corev1.ConditionTrue, "HeartbeatsArrive"))
	var first *coordinationv1.Lease
	w.beatUntil(m, true, func() (err error) {
		first, err = w.getLease()
		return err
	})
	if *first.Spec.HolderIdentity != w.name || *first.Spec.LeaseDurationSeconds != 1 || len(first.OwnerReferences) != 1 {
		t.Errorf("lease %+v", first)
	}
	w.checkRenewals(m, first.Spec.RenewTime.Time)
	checkLeasePeriod(t, metrics, longestPeriod)

	w.beatUntil(m, false, w.hasConnected(corev1.ConditionTrue, "KubeletUnwell"))
	unwell, err := w.getLease()
	if err != nil {
		t.Fatal(err)
	}
	stop := time.Now().Add(500 * time.Millisecond)
	w.beatUntil(m, false, func() error {
		lease, err := w.getLease()
		if err == nil && !lease.Spec.RenewTime.Equal(unwell.Spec.RenewTime) {
			t.Error("the lease of an unwell kubelet was renewed")
		}
		if time.Now().Before(stop) {
			return errors.New("watching")
		}
		return err
	})
	kit.Succeeds(t, 10*time.Second, w.hasConnected(corev1.ConditionFalse, "NoHeartbeat"))
	w.beatUntil(m, true, w.hasConnected(corev1.ConditionTrue, "HeartbeatsArrive"))
	kit.Succeeds(t, 10*time.Second, w.hasConnected(corev1.ConditionFalse, "NoHeartbeat")) // and once more
}

// checkLeasePeriod checks the metric of the period.
func checkLeasePeriod(t *testing.T, metrics prometheus.Gatherer, want time.Duration) {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "frond_lease_period_seconds" {
			continue
		}
		if got := family.GetMetric()[0].GetGauge().GetValue(); got != want.Seconds() {
			t.Errorf("frond_lease_period_seconds %v, want %v", got, want.Seconds())
		}
		return
	}
	t.Error("no metric frond_lease_period_seconds")
}

// TestMonitor_NewOwnerRenewsLeaseAtOnce: a new owner does not know how old the Lease is, so the first heartbeat renews it; the next
// one does not.
func TestMonitor_NewOwnerRenewsLeaseAtOnce(t *testing.T) {
	w := newMonitorEnv(t)
	w.createNode()
	first, second := newFakeOwner(true), newFakeOwner(false)
	start := func(o *fakeOwner) *nodes.Monitor { return w.startMonitorWith(o, nil, func(*nodes.Monitor) {}) }
	a, b := start(first), start(second)
	var before, after *coordinationv1.Lease
	w.beatUntil(a, true, func() (err error) {
		before, err = w.getLease()
		return err
	})
	if *before.Spec.LeaseDurationSeconds != 40 {
		t.Errorf("valid for %d s", *before.Spec.LeaseDurationSeconds)
	}
	w.beatUntil(a, true, w.hasConnected(corev1.ConditionTrue, "HeartbeatsArrive")) // further heartbeats
	if now, err := w.getLease(); err != nil || !now.Spec.RenewTime.Equal(before.Spec.RenewTime) {
		t.Errorf("renewed again: %v, %v", now, err)
	}
	first.toggleOwnership()
	second.toggleOwnership()
	b.RecordHeartbeat(w.name, wire.Heartbeat{Healthy: true}, completeProgress)
	kit.Succeeds(t, 20*time.Second, func() (err error) {
		if after, err = w.getLease(); err == nil && !after.Spec.RenewTime.After(before.Spec.RenewTime.Time) {
			err = errors.New("the new owner has not renewed the Lease")
		}
		return err
	})
}

func TestMonitor_NewOwnerDetectsSilentNode(t *testing.T) {
	w := newMonitorEnv(t)
	w.createNode()
	first, second := newFakeOwner(true), newFakeOwner(false)
	a := w.startMonitor(first)
	w.beatUntil(a, true, w.hasConnected(corev1.ConditionTrue, "HeartbeatsArrive"))
	b := w.startMonitor(second)
	b.RecordHeartbeat(w.name, wire.Heartbeat{Healthy: true}, completeProgress) // not its node
	first.toggleOwnership()
	second.toggleOwnership()
	kit.Succeeds(t, 10*time.Second, w.hasConnected(corev1.ConditionFalse, "NoHeartbeat"))
}

// A revoked node is shown as revoked at once, and stays so without heartbeats; when it has joined again, it is shown as
// connected.
func TestMonitor_ReportsRevokedNode(t *testing.T) {
	w, o := newMonitorEnv(t), newFakeOwner(true)
	w.createNode()
	m := w.startMonitorWith(o, nil, func(*nodes.Monitor) {}) // the 30 s timeout is not reached
	w.beatUntil(m, true, w.hasConnected(corev1.ConditionTrue, "HeartbeatsArrive"))
	o.setRevoked(true)
	m.EnqueueNode(w.name)
	kit.Succeeds(t, 20*time.Second, w.hasConnected(corev1.ConditionFalse, "Revoked"))
	o.setRevoked(false)
	w.beatUntil(m, true, w.hasConnected(corev1.ConditionTrue, "HeartbeatsArrive"))
}

// TestMonitor_ReportsUntestedKubernetes: the condition follows the version of the Kubernetes API.
func TestMonitor_ReportsUntestedKubernetes(t *testing.T) {
	w := newMonitorEnv(t)
	w.createNode()
	o := newFakeOwner(true)
	m := w.startMonitor(o)
	says := func(status corev1.ConditionStatus, reason string) {
		t.Helper()
		kit.Succeeds(t, 30*time.Second, func() error {
			m.RecordHeartbeat(w.name, wire.Heartbeat{Healthy: true}, completeProgress)
			node, err := w.client.CoreV1().Nodes().Get(t.Context(), w.name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range node.Status.Conditions {
				if c.Type == names.ConditionVersionSupported && c.Status == status && c.Reason == reason {
					return nil
				}
			}
			return fmt.Errorf("no condition %s %s of reason %s in %v", names.ConditionVersionSupported, status, reason, node.Status.Conditions)
		})
	}
	o.setVersion("v1.20.1")
	says(corev1.ConditionFalse, kubeversion.ReasonOlder)
	o.setVersion("v1.37.9")
	says(corev1.ConditionTrue, kubeversion.ReasonTested)
}

// The previous owner, paused perhaps, writes after the takeover: the node still counts as silent.
func TestMonitor_OverridesLateWriteOfOldOwner(t *testing.T) {
	w := newMonitorEnv(t)
	w.createNode()
	m := w.startMonitor(newFakeOwner(true))
	w.beatUntil(m, true, w.hasConnected(corev1.ConditionTrue, "HeartbeatsArrive"))
	kit.Succeeds(t, 10*time.Second, w.hasConnected(corev1.ConditionFalse, "NoHeartbeat"))
	w.writeConnected()
	kit.Succeeds(t, 10*time.Second, w.hasConnected(corev1.ConditionFalse, "NoHeartbeat"))
}

// writeConnected writes the condition of a connected node.
func (w *monitorEnv) writeConnected() {
	w.Helper()
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":"True","reason":"HeartbeatsArrive","lastTransitionTime":%q}]}}`,
		names.ConditionConnected, time.Now().UTC().Format(time.RFC3339))
	if _, err := w.client.CoreV1().Nodes().PatchStatus(w.Context(), w.name, []byte(patch)); err != nil {
		w.Fatal(err)
	}
}
