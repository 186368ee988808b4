package suite_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster"
)

// Mass deletions: a drain, a mass delete, and a restore of etcd to an older copy. These objects are in the namespace
// default, which the history checker ignores.

// drainedPods is the number of pods deleted from one gateway at once.
const drainedPods = 22

// createSleepPods creates bare pods on a node, and waits until they run there.
func (r *testCluster) createSleepPods(t *testing.T, node, app string, n int) {
	t.Helper()
	api := r.kube.CoreV1().Pods(metav1.NamespaceDefault)
	for i := range n {
		p := sleepPod(node, app+"-"+strconv.Itoa(i))
		p.Namespace, p.Labels = metav1.NamespaceDefault, map[string]string{"app": app}
		if _, err := api.Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		zero := int64(0)
		err := api.DeleteCollection(context.WithoutCancel(t.Context()), metav1.DeleteOptions{GracePeriodSeconds: &zero}, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			t.Error(err)
		}
	})
	r.eventually(t, fmt.Sprintf("%d pods run", n), waitTimeout, func(ctx context.Context) string {
		list, err := api.List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return err.Error()
		}
		running := 0
		for i := range list.Items {
			if podReady(&list.Items[i]) {
				running++
			}
		}
		if running != n {
			return fmt.Sprintf("%d run", running)
		}
		return ""
	})
}

// countStoredPods counts the pods of an app in a gateway's store.
func (r *testCluster) countStoredPods(ctx context.Context, node, app string) (n int, err error) {
	err = r.withCluster(func(c *devcluster.Cluster) error {
		stored, err := c.Store(ctx, node)
		for _, o := range stored.Objects {
			if o.Key().Resource == "pods" && strings.HasPrefix(o.Name, app+"-") {
				n++
			}
		}
		return err
	})
	return n, err
}

// awaitPodsGone waits until a gateway holds no pod of an app.
func (r *testCluster) awaitPodsGone(t *testing.T, node, app string) {
	t.Helper()
	r.eventually(t, "the pods leave the gateway", waitTimeout, func(ctx context.Context) string {
		n, err := r.countStoredPods(ctx, node, app)
		if err != nil || n > 0 {
			return fmt.Sprintf("it holds %d, %v", n, err)
		}
		return ""
	})
}

// holdReason returns the reason why deletions of a node are held, "" if they are not.
func (r *testCluster) holdReason(ctx context.Context, node string) string {
	n, err := r.kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	for _, c := range n.Status.Conditions {
		if c.Type == "EdgeDeletionsHeld" && c.Status == corev1.ConditionTrue {
			return c.Reason
		}
	}
	return ""
}

func (r *testCluster) awaitHold(t *testing.T, node, reason string) {
	t.Helper()
	r.eventually(t, "the deletions of "+node+" are held for "+reason, waitTimeout, func(ctx context.Context) string {
		if is := r.holdReason(ctx, node); is != reason {
			return fmt.Sprintf("%q", is)
		}
		return ""
	})
}

// mustRunFrond runs the command frond.
func (r *testCluster) mustRunFrond(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(r.cluster.Dir(), "bin", "frond"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+r.cluster.Kubeconfig())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("frond %v: %v: %s", args, err, out)
	}
}

// TestDeletionGuard_DrainIsNotHeld: a drain deletes pod by pod, and each pod terminates in order, so no confirmation is needed. The same
// pods deleted by force stay until an operator confirms.
func TestDeletionGuard_DrainIsNotHeld(t *testing.T) {
	const node = "edge-3"
	shared.awaitSettled(t)
	began := metav1.NewTime(time.Now().Truncate(time.Second))
	shared.createSleepPods(t, node, "drained", drainedPods)
	out, err := shared.cluster.Kubectl(t.Context(), "", "drain", node, "--force", "--pod-selector=app=drained", "--timeout=200s")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := strings.Count(out, "evicted"); n != drainedPods {
		t.Errorf("%d of %d pods were evicted:\n%s", n, drainedPods, out)
	}
	shared.awaitPodsGone(t, node, "drained")
	events, err := shared.kube.CoreV1().Events("").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + node + ",reason=DeletionsHeld"})
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return !e.CreationTimestamp.Before(&began) }) {
		t.Errorf("the drain was held: %+v", events.Items)
	}
	if _, err := shared.cluster.Kubectl(t.Context(), "", "uncordon", node); err != nil {
		t.Fatal(err)
	}

	shared.createSleepPods(t, node, "forced", drainedPods)
	if out, err := shared.cluster.Kubectl(t.Context(), "", "delete", "pods", "-l", "app=forced", "--force", "--grace-period=0"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	shared.awaitHold(t, node, string(wire.HoldMassDelete))
	if n, err := shared.countStoredPods(t.Context(), node, "forced"); err != nil || n != drainedPods {
		t.Errorf("the gateway holds %d of %d pods that were deleted by force, %v", n, drainedPods, err)
	}
	shared.mustRunFrond(t, "confirm", node)
	shared.awaitPodsGone(t, node, "forced")
	shared.awaitHold(t, node, "")
	shared.awaitSettled(t)
}

// TestEtcdRestore_DeletionsAreHeld: the cloudcores detect the restore and start again in place, under their process ids. Pods that the API
// has run again; pods that it no longer has are kept until an operator confirms.
func TestEtcdRestore_DeletionsAreHeld(t *testing.T) {
	const node = "edge-1"
	cloudcores := []string{"cloudcore-1", "cloudcore-2"}
	shared.awaitSettled(t)
	shared.createSleepPods(t, node, "early", 1)
	data := filepath.Join(shared.cluster.Dir(), "etcd")
	shared.withoutEtcd(t, func() {
		if out, err := exec.CommandContext(t.Context(), "cp", "-a", data, data+"-copy").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	})
	t.Cleanup(func() { _ = os.RemoveAll(data + "-copy") })
	shared.awaitHistoryBeyond(t, shared.historyCount(t.Context(), t)+1) // a copy of this very moment could not be told from a crash
	one := int64(1)
	if err := shared.kube.CoreV1().Pods(metav1.NamespaceDefault).Delete(t.Context(), "early-0", metav1.DeleteOptions{GracePeriodSeconds: &one}); err != nil {
		t.Fatal(err)
	}
	shared.awaitPodsGone(t, node, "early")
	shared.createSleepPods(t, node, "late", 1)
	shared.awaitSettled(t)
	pids := map[string]int{}
	logs := map[string]int64{}
	for _, part := range cloudcores {
		pids[part], logs[part] = shared.cluster.PID(part), shared.logEnd(t, part)
	}
	for _, judge := range shared.checkers {
		judge.ResetVersions()
	}
	shared.withoutEtcd(t, func() {
		if err := os.RemoveAll(data); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(data+"-copy", data); err != nil {
			t.Fatal(err)
		}
	})
	for _, part := range cloudcores {
		shared.eventually(t, part+" begins anew", waitTimeout, func(context.Context) string {
			if !strings.Contains(shared.logSince(t, part, logs[part]), `"starting again"`) {
				return "its log does not say so"
			}
			return ""
		})
		if pid := shared.cluster.PID(part); pid != pids[part] {
			t.Errorf("%s is process %d, and was %d", part, pid, pids[part])
		}
	}
	shared.eventually(t, "the pod that is back in the API runs", waitTimeout, func(ctx context.Context) string {
		p, err := shared.kube.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, "early-0", metav1.GetOptions{})
		if n, heldErr := shared.countStoredPods(ctx, node, "early"); err != nil || heldErr != nil || n != 1 || !podReady(p) {
			return fmt.Sprintf("the gateway holds %d, %v; in the API: %v, %v", n, heldErr, p.Status, err)
		}
		return ""
	})
	shared.awaitHold(t, node, string(wire.HoldRestored))
	if _, err := shared.kube.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), "late-0", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the API knows the pod that was made after the copy: %v", err)
	}
	if n, err := shared.countStoredPods(t.Context(), node, "late"); err != nil || n != 1 {
		t.Errorf("the gateway holds %d pods that were made after the copy, %v", n, err)
	}
	shared.mustRunFrond(t, "confirm", "--all-held")
	shared.awaitPodsGone(t, node, "late")
	shared.awaitHold(t, node, "")
	shared.awaitSettled(t)
}

// withoutEtcd stops etcd and every process with state from it, except cloudcores and gateways; runs do; and
// starts them again.
func (r *testCluster) withoutEtcd(t *testing.T, do func()) {
	t.Helper()
	parts := []string{"scheduler", "controller-manager", "apiserver", "etcd"}
	for _, part := range parts {
		r.mustCluster(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), part) })
	}
	do()
	slices.Reverse(parts)
	for _, part := range parts {
		r.mustCluster(t, func(c *devcluster.Cluster) error { return c.Start(t.Context(), part) })
	}
}

// historyCount returns how far the cloudcores have observed the history of Kubernetes.
func (r *testCluster) historyCount(ctx context.Context, t *testing.T) int32 {
	t.Helper()
	lease, err := r.kube.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, "frond-history", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return *lease.Spec.LeaseTransitions
}

// awaitHistoryBeyond waits until the observed history has passed that count.
func (r *testCluster) awaitHistoryBeyond(t *testing.T, beyond int32) {
	t.Helper()
	r.eventually(t, "the history of Kubernetes goes on", waitTimeout, func(ctx context.Context) string {
		if n := r.historyCount(ctx, t); n <= beyond {
			return fmt.Sprint("it stands at ", n)
		}
		return ""
	})
}
