package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/api/names"
)

// evictedPod is a pod on edge-1 that Kubernetes evicts soon after it considers the node unreachable.
const evictedPod = `
apiVersion: v1
kind: Pod
metadata: {name: leaver, labels: {app: leaver}}
spec:
  nodeSelector: {kubernetes.io/hostname: edge-1}
  terminationGracePeriodSeconds: 1
  tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 2}]
  containers:
  - {name: main, image: localhost/frond/tools:dev, imagePullPolicy: Never, command: [sleep, "36000"]}
`

// cutGateways are two gateways whose links are cut at the same time: edge-2 is autonomous through its group, edge-1 is not.
type cutGateways struct {
	kube kubernetes.Interface
}

// newCutGateways makes edge-2 autonomous and cuts edge-1. It takes a minute until Kubernetes reacts.
func newCutGateways(t *testing.T) cutGateways {
	t.Helper()
	a := cutGateways{kube: sharedKube}
	applyManifest(t, nodeGroupManifest("away", "edge-2", names.AutonomyForever))
	a.keepThird(t)
	applyManifest(t, evictedPod)
	awaitRunning(t, "app=leaver", 1)
	eventually(t, "the pods of edge-2 tolerate that it is away", func(ctx context.Context) string { return checkTolerations(ctx, "app=boot,set=boot", true) })
	t.Cleanup(func() {
		if err := shared.Heal(context.WithoutCancel(t.Context()), "edge-1"); err != nil {
			t.Error(err)
		}
	})
	if err := shared.Cut(t.Context(), "edge-1", false); err != nil {
		t.Fatal(err)
	}
	return a
}

// keepThird keeps a third Node Ready: while no Node is, Kubernetes assumes that it is itself cut off, and evicts no pod.
func (a cutGateways) keepThird(t *testing.T) {
	t.Helper()
	const name, every = "third", 5 * time.Second
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var g errgroup.Group
	t.Cleanup(func() {
		cancel()
		_ = g.Wait()
		if err := a.kube.CoreV1().Nodes().Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Unschedulable: true}}
	if _, err := a.kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ready := []byte(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Test","message":"ready"}]}}`)
	if _, err := a.kube.CoreV1().Nodes().PatchStatus(ctx, name, ready); err != nil {
		t.Fatal(err)
	}
	leases := a.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	lease, err := leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: new(name), RenewTime: new(metav1.NowMicro())},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = leases.Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{}) })
	g.Go(func() error {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
			lease.Spec.RenewTime = new(metav1.NowMicro())
			if next, err := leases.Update(ctx, lease, metav1.UpdateOptions{}); err == nil { // or with the next tick
				lease = next
			}
		}
	})
}

// checkEviction waits until Kubernetes has evicted the pod of edge-1. It checks that Kubernetes keeps those of edge-2, although that node is
// unreachable too, and that this is reported everywhere. Then edge-1 returns and its pod ends.
func (a cutGateways) checkEviction(t *testing.T) {
	t.Helper()
	eventually(t, "the pod of edge-1 is evicted", func(ctx context.Context) string {
		list, err := listPods(ctx, "app=leaver")
		if err != nil {
			return err.Error()
		}
		if len(list) != 1 || list[0].DeletionTimestamp == nil {
			return describePods(list)
		}
		return ""
	})
	eventually(t, "edge-2 is unreachable for some time", func(ctx context.Context) string {
		node, err := a.kube.CoreV1().Nodes().Get(ctx, "edge-2", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, taint := range node.Spec.Taints {
			if taint.Key == corev1.TaintNodeUnreachable && taint.Effect == corev1.TaintEffectNoExecute && time.Since(taint.TimeAdded.Time) > 6*time.Second {
				return ""
			}
		}
		return fmt.Sprint(node.Spec.Taints)
	})
	list, err := listPods(t.Context(), "app=boot")
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		if list[i].DeletionTimestamp != nil {
			t.Errorf("%s of the autonomous node is evicted", list[i].Name)
		}
	}
	a.checkReported(t)
	if err := shared.Heal(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the evicted pod is gone", func(ctx context.Context) string {
		list, err := listPods(ctx, "app=leaver")
		if err != nil {
			return err.Error()
		}
		return describePods(list)
	})
}

// checkReported checks that the Node and frond status report edge-2 as away and autonomous, since when, and how far behind.
func (a cutGateways) checkReported(t *testing.T) {
	t.Helper()
	if err := setConfigMap(t.Context(), a.kube, "flow-0", "changed while away"); err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{names.AutonomyForever, "9999h"} { // a change is noticed at once
		runKubectl(t, "annotate", "nodegroup", "away", "--overwrite", names.AnnotationAutonomy+"="+value)
		eventually(t, "the Node tells", func(ctx context.Context) string {
			node, err := a.kube.CoreV1().Nodes().Get(ctx, "edge-2", metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			for _, c := range node.Status.Conditions {
				if c.Type == "EdgeConnected" && c.Status == corev1.ConditionFalse && c.Reason == "Autonomous" && !c.LastTransitionTime.IsZero() &&
					strings.Contains(c.Message, value+" of NodeGroup away") {
					return ""
				}
			}
			return fmt.Sprint(node.Status.Conditions)
		})
	}
	eventually(t, "frond status tells", func(ctx context.Context) string {
		var n inspect.Node
		if err := frondJSON(ctx, &n, "status", "edge-2"); err != nil {
			return err.Error()
		}
		p := n.Progress
		if n.Link != "False" || n.Autonomy != "9999h" || n.AutonomyGroup != "away" || n.LinkSince.IsZero() || p == nil || p.Applied == nil || *p.Applied >= p.Desired || p.Oldest.IsZero() {
			return fmt.Sprintf("%+v, %+v", n, p)
		}
		return ""
	})
}
