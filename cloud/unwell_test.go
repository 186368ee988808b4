package cloud

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/internal/kubetest"
)

// TestANodeThatKubernetesLostIsAskedAgain: while Kubernetes does not know how a node is, the node is asked again and again,
// and once more after it is well; then never.
func TestANodeThatKubernetesLostIsAskedAgain(t *testing.T) {
	cluster := shared.Cluster(t)
	nodes := cluster.Client(t).CoreV1().Nodes()
	node, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "unwell-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nodes.Delete(context.WithoutCancel(t.Context()), node.Name, metav1.DeleteOptions{}) })
	objects, err := cache.New(cluster.Config(), cache.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	u := newUnwell(objects, func(name string) bool { return name == node.Name }, func(string) error {
		asked.Add(1)
		return nil
	}, zaptest.NewLogger(t))
	u.again = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return objects.Start(gctx) })
	g.Go(func() error { return u.Start(gctx) })
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	say := func(status corev1.ConditionStatus) {
		t.Helper()
		kubetest.Eventually(t, time.Minute, func() error {
			now, err := nodes.Get(t.Context(), node.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			now.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
			_, err = nodes.UpdateStatus(t.Context(), now, metav1.UpdateOptions{})
			return err
		})
	}
	more := func(n int64) {
		t.Helper()
		before := asked.Load()
		kubetest.Eventually(t, time.Minute, func() error {
			if asked.Load() < before+n {
				return errors.New("not asked")
			}
			return nil
		})
	}
	say(corev1.ConditionTrue)
	say(corev1.ConditionUnknown)
	more(3)
	say(corev1.ConditionTrue)
	more(1)
	// It ends: twice as long as it would take to be asked again, nobody asks.
	kubetest.Eventually(t, time.Minute, func() error {
		before := asked.Load()
		quiet := time.NewTimer(10 * u.again)
		defer quiet.Stop()
		<-quiet.C
		if asked.Load() != before {
			return errors.New("asked for ever")
		}
		return nil
	})
}
