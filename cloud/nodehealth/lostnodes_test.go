package nodehealth

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

// TestLostNodeResync_AsksUntilNodeIsReady: while Kubernetes does not know a node's state, the node is asked repeatedly,
// also if that was so when the replica started, and once more after it is ready; then never. Another replica's node is not asked.
func TestLostNodeResync_AsksUntilNodeIsReady(t *testing.T) {
	cluster := sharedCluster.Cluster(t)
	nodes := cluster.Client(t).CoreV1().Nodes()
	made := func() string {
		node, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "unwell-"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nodes.Delete(context.WithoutCancel(t.Context()), node.Name, metav1.DeleteOptions{}) })
		return node.Name
	}
	own, other := made(), made()
	say := func(node string, status corev1.ConditionStatus) {
		t.Helper()
		kit.Succeeds(t, time.Minute, func() error {
			now, err := nodes.Get(t.Context(), node, metav1.GetOptions{})
			if err != nil {
				return err
			}
			now.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
			_, err = nodes.UpdateStatus(t.Context(), now, metav1.UpdateOptions{})
			return err
		})
	}
	say(own, corev1.ConditionUnknown)
	say(other, corev1.ConditionUnknown)
	objects, err := cache.New(cluster.Config(), cache.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var asked, wrong atomic.Int64
	u := NewLostNodeResync(objects, func(name string) bool { return name == own }, func(name string) error {
		if name != own {
			wrong.Add(1)
		}
		asked.Add(1)
		return nil
	}, zaptest.NewLogger(t))
	u.repeatAfter = 50 * time.Millisecond
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
	more := func(n int64) {
		t.Helper()
		before := asked.Load()
		kit.Succeeds(t, time.Minute, func() error {
			if asked.Load() < before+n {
				return errors.New("not asked")
			}
			return nil
		})
	}
	quiet := func() { // no request within a time much longer than the interval
		t.Helper()
		kit.Succeeds(t, time.Minute, func() error {
			before := asked.Load()
			still := time.NewTimer(10 * u.repeatAfter)
			defer still.Stop()
			<-still.C
			if asked.Load() != before {
				return errors.New("asked for ever")
			}
			return nil
		})
	}
	more(3)
	say(own, corev1.ConditionTrue)
	quiet()
	say(own, corev1.ConditionUnknown)
	more(3)
	say(own, corev1.ConditionTrue)
	quiet()
	if n := wrong.Load(); n != 0 {
		t.Errorf("another replica's node was asked %d times", n)
	}
}
