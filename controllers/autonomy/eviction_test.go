package autonomy_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/frond-edge/frond/test/kit"
)

// createReadyNode creates a Node that is Ready and renews its lease until away is set.
func (w *tolerationEnv) createReadyNode(suffix string) (name string, away *atomic.Bool) {
	w.Helper()
	name, away = w.createNode(suffix), new(atomic.Bool)
	leases := w.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	lease, err := leases.Create(w.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: new(metav1.NowMicro())},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	ready := []byte(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Test","message":"ready"}]}}`)
	if _, err := w.client.CoreV1().Nodes().PatchStatus(w.Context(), name, ready); err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	var g errgroup.Group
	g.Go(func() error {
		tick := time.NewTicker(leaseGrace / 12)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
			if away.Load() {
				continue
			}
			lease.Spec.RenewTime = new(metav1.NowMicro())
			next, err := leases.Update(ctx, lease, metav1.UpdateOptions{})
			if err != nil && ctx.Err() == nil {
				return err
			}
			lease = next
		}
	})
	w.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			w.Errorf("renew the lease of %s: %v", name, err)
		}
	})
	return name, away
}

// unreachableFor fails until Kubernetes has considered a Node unreachable, and would evict its pods, for that long.
func (w *tolerationEnv) unreachableFor(node string, least time.Duration) error {
	n, err := w.client.CoreV1().Nodes().Get(w.Context(), node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, taint := range n.Spec.Taints {
		if taint.Key != corev1.TaintNodeUnreachable || taint.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		if taint.TimeAdded == nil || time.Since(taint.TimeAdded.Time) < least {
			return fmt.Errorf("unreachable since %v", taint.TimeAdded)
		}
		return nil
	}
	return errors.New("not unreachable")
}

// podEvicted fails until a pod is gone.
func (w *tolerationEnv) podEvicted(pod string) error {
	p, err := w.client.CoreV1().Pods(w.namespace).Get(w.Context(), pod, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("%s is there: deleted %v, tolerates %v", pod, p.DeletionTimestamp, p.Spec.Tolerations)
}

// TestTolerationController_PreventsEviction lets Kubernetes' own controllers evict: three nodes become silent, each
// with a pod that tolerates that for a second. The pods of the autonomous node and of that in an autonomous group stay
// until the annotation is removed. The other Nodes are necessary: if more than half of a cluster is silent, Kubernetes
// assumes that it is itself cut off, and evicts no pod.
func TestTolerationController_PreventsEviction(t *testing.T) {
	const short = 1
	w := newTolerationEnv(t)
	for _, other := range []string{"a", "b", "c"} {
		w.createReadyNode(other)
	}
	usual, usualAway := w.createReadyNode("usual")
	calm, calmAway := w.createReadyNode("calm")
	member, memberAway := w.createReadyNode("member")
	w.annotateNode(calm, `"forever"`)
	w.createGroup("calm", "1h", []string{member}, nil)
	w.createPod("goes", usual, short)
	w.createPod("stays", calm, short)
	w.createPod("stays-too", member, short)
	kit.Succeeds(t, changeTimeout, w.hasToleration("stays", nil))
	kit.Succeeds(t, changeTimeout, w.hasToleration("stays-too", ptr.To[int64](3600)))
	usualAway.Store(true)
	calmAway.Store(true)
	memberAway.Store(true)
	kit.Succeeds(t, changeTimeout, func() error { return w.podEvicted("goes") })
	for pod, node := range map[string]string{"stays": calm, "stays-too": member} {
		kit.Succeeds(t, changeTimeout, func() error { return w.unreachableFor(node, 5*short*time.Second) })
		p, err := w.client.CoreV1().Pods(w.namespace).Get(t.Context(), pod, metav1.GetOptions{})
		if err != nil || p.DeletionTimestamp != nil {
			t.Fatalf("the pod of the autonomous node: %v, deleted %v", err, p.DeletionTimestamp)
		}
	}
	w.annotateNode(calm, "null")
	w.deleteGroup("calm") // the hour that Kubernetes has planned for ends, too
	kit.Succeeds(t, changeTimeout, func() error { return w.podEvicted("stays") })
	kit.Succeeds(t, changeTimeout, func() error { return w.podEvicted("stays-too") })
}
