package nodehealth

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"

	"github.com/frond-edge/frond/controllers/podcache"
	"github.com/frond-edge/frond/test/kit"
)

func TestResyncNeeded(t *testing.T) {
	const well, ill, lost, none = corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown, corev1.ConditionStatus("")
	for change, want := range map[[2]corev1.ConditionStatus][2]bool{
		{well, well}: {}, {well, ill}: {}, {ill, well}: {}, {none, well}: {}, {none, none}: {},
		{well, lost}: {true, false}, {ill, lost}: {true, false}, {none, lost}: {true, false}, {lost, lost}: {true, false},
		{lost, well}: {true, true}, {lost, ill}: {true, true},
	} {
		if now, later := resyncNeeded(change[0], change[1]); now != want[0] || later != want[1] {
			t.Errorf("%q: now %v, later %v", change, now, later)
		}
	}
}

// resyncTest is a LostNodeResync on a real apiserver, which counts its requests.
type resyncTest struct {
	t            *testing.T
	client       kubernetes.Interface
	part         *LostNodeResync
	own, other   string
	asked, wrong atomic.Int64
	owns         atomic.Bool // of the node own
}

func newResyncTest(t *testing.T) *resyncTest {
	t.Helper()
	r := &resyncTest{t: t, client: sharedCluster.Cluster(t).Client(t)}
	r.own, r.other = r.createNode(), r.createNode()
	r.owns.Store(true)
	return r
}

func (r *resyncTest) createNode() string {
	r.t.Helper()
	nodes := r.client.CoreV1().Nodes()
	node, err := nodes.Create(r.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "unwell-"}}, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = nodes.Delete(context.WithoutCancel(r.t.Context()), node.Name, metav1.DeleteOptions{}) })
	return node.Name
}

// start runs the part until the test ends.
func (r *resyncTest) start() {
	r.t.Helper()
	objects, err := podcache.New(sharedCluster.Cluster(r.t).Config())
	if err != nil {
		r.t.Fatal(err)
	}
	r.part = NewLostNodeResync(objects, func(name string) bool { return name == r.own && r.owns.Load() }, func(name string) error {
		if name != r.own {
			r.wrong.Add(1)
		}
		r.asked.Add(1)
		return nil
	}, zaptest.NewLogger(r.t))
	r.part.repeatAfter = 50 * time.Millisecond
	r.part.pauses = workqueue.NewTypedItemExponentialFailureRateLimiter[string](r.part.repeatAfter, r.part.repeatAfter)
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return objects.Start(gctx) })
	g.Go(func() error { return r.part.Start(gctx) })
	r.t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			r.t.Error(err)
		}
		if n := r.wrong.Load(); n != 0 {
			r.t.Errorf("another replica's node was asked %d times", n)
		}
	})
}

func (r *resyncTest) setNode(node string, status corev1.ConditionStatus) {
	r.t.Helper()
	kit.Succeeds(r.t, time.Minute, func() error {
		now, err := r.client.CoreV1().Nodes().Get(r.t.Context(), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
		_, err = r.client.CoreV1().Nodes().UpdateStatus(r.t.Context(), now, metav1.UpdateOptions{})
		return err
	})
}

// createPod creates a pod of a node whose containers are ready.
func (r *resyncTest) createPod(namespace, node string) string {
	r.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	pod, err := r.client.CoreV1().Pods(namespace).Create(r.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.setPod(namespace, pod.Name, corev1.ConditionTrue, "")
	return pod.Name
}

func (r *resyncTest) setPod(namespace, name string, ready corev1.ConditionStatus, reason string) {
	r.t.Helper()
	pod, err := r.client.CoreV1().Pods(namespace).Get(r.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: ready, Reason: reason},
	}
	if _, err := r.client.CoreV1().Pods(namespace).UpdateStatus(r.t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// expectMore waits for further requests.
func (r *resyncTest) expectMore(n int64) {
	r.t.Helper()
	before := r.asked.Load()
	kit.Succeeds(r.t, time.Minute, func() error {
		if asked := r.asked.Load(); asked < before+n {
			return fmt.Errorf("asked %d times, not %d", asked-before, n)
		}
		return nil
	})
}

// expectQuiet waits until there is no request within a time much longer than the interval.
func (r *resyncTest) expectQuiet() {
	r.t.Helper()
	kit.Succeeds(r.t, time.Minute, func() error {
		before := r.asked.Load()
		still := time.NewTimer(10 * r.part.repeatAfter)
		defer still.Stop()
		<-still.C
		if r.asked.Load() != before {
			return errors.New("asked for ever")
		}
		return nil
	})
}

// TestLostNodeResync_AsksUntilNodeIsReady: while Kubernetes does not know a node's state, the node is asked repeatedly,
// also if that was so when the replica started, and once more after it is ready; then never. Another replica's node is not asked.
func TestLostNodeResync_AsksUntilNodeIsReady(t *testing.T) {
	r := newResyncTest(t)
	r.setNode(r.own, corev1.ConditionUnknown)
	r.setNode(r.other, corev1.ConditionUnknown)
	r.start()
	r.expectMore(3)
	r.setNode(r.own, corev1.ConditionTrue)
	r.expectQuiet()
	r.setNode(r.own, corev1.ConditionUnknown)
	r.expectMore(3)
	r.setNode(r.own, corev1.ConditionTrue)
	r.expectQuiet()
}

// TestLostNodeResync_AsksUntilPodsAreReady: the node of a pod that kube-controller-manager has marked is asked repeatedly, although the node is ready,
// also if the pod was marked before the replica started or owned the node; a pod that its kubelet calls not ready is none of this.
func TestLostNodeResync_AsksUntilPodsAreReady(t *testing.T) {
	r := newResyncTest(t)
	ns := sharedCluster.Cluster(t).Namespace(t)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}} // no controller makes it here
	if _, err := r.client.CoreV1().ServiceAccounts(ns).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.setNode(r.own, corev1.ConditionTrue)
	r.setNode(r.other, corev1.ConditionTrue)
	first, second, foreign := r.createPod(ns, r.own), r.createPod(ns, r.own), r.createPod(ns, r.other)
	r.setPod(ns, first, corev1.ConditionFalse, "")
	r.setPod(ns, foreign, corev1.ConditionFalse, "")
	r.start()
	r.expectMore(3)
	r.setPod(ns, first, corev1.ConditionTrue, "")
	r.expectQuiet()
	r.owns.Store(false)
	r.setPod(ns, second, corev1.ConditionFalse, "")
	r.expectQuiet()
	r.owns.Store(true)
	r.expectMore(3)
	if err := r.client.CoreV1().Pods(ns).Delete(t.Context(), second, *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	r.expectQuiet()
	r.setPod(ns, first, corev1.ConditionFalse, "ReadinessGatesNotReady")
	r.expectQuiet()
}
