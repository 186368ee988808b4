package suite_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/history"
	"github.com/frond-edge/frond/test/faults"
)

// TestClonedDisk_IsReportedAndFenced: with the peer, two agents of one name alternately take over each other's connection. Here the
// first gateway continues undisturbed; the copy is reported and receives nothing. After the copy ends, the cloud's state is correct again.
func TestClonedDisk_IsReportedAndFenced(t *testing.T) {
	const node = "edge-1"
	shared.awaitSettled(t)
	// The same problem is reported once in ten minutes: when this test runs twice on one cluster, the first report counts.
	since := metav1.NewTime(time.Now().Add(-10 * time.Minute))
	shared.mustCluster(t, func(c *devcluster.Cluster) error {
		return errors.Join(c.Kill(t.Context(), node), c.CopyDisk(t.Context(), node), c.Start(t.Context(), node))
	})
	// The gateway is served, which its readiness does not prove when its store is full: of two agents that start together either may stay.
	shared.timeChange(t, node, faults.Name(node, "map", 5), "before the copy")
	shared.awaitSettled(t)
	shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.LaunchClone(t.Context(), node) })
	t.Cleanup(func() {
		if err := shared.withCluster(func(c *devcluster.Cluster) error { return c.KillClone(context.WithoutCancel(t.Context()), node) }); err != nil {
			t.Error(err)
		}
	})
	launched := time.Now()
	shared.eventually(t, "the copy is fenced", waitTimeout, func(ctx context.Context) string {
		err := shared.withCluster(func(c *devcluster.Cluster) error { return c.CloneReady(ctx, node) })
		if err == nil || !strings.Contains(err.Error(), "[-]identity failed") {
			return fmt.Sprint("it says ", err)
		}
		return ""
	})
	t.Logf("the copy is fenced %.1fs after it was started", time.Since(launched).Seconds())
	shared.eventually(t, "the Node tells of it", waitTimeout, func(ctx context.Context) string {
		events, err := shared.kube.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + node + ",reason=DuplicateNode"})
		if err != nil {
			return err.Error()
		}
		if !slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return since.Before(&e.LastTimestamp)
		}) {
			return fmt.Sprintf("no event DuplicateNode since %s among %d", since, len(events.Items))
		}
		return ""
	})
	before := shared.cloneSequence(t, node)
	name := faults.Name(node, "map", 5)
	for i := range 20 {
		shared.timeChange(t, node, name, fmt.Sprint("beside a copy ", i))
	}
	shared.awaitSettled(t) // the gateway itself is undisturbed meanwhile
	if after := shared.cloneSequence(t, node); after != before {
		t.Errorf("the copy took what was the gateway's: its store went from %d to %d", before, after)
	}
	shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.KillClone(t.Context(), node) })
	shared.awaitSettled(t)
	pod := faults.Name(node, "anchor", 0)
	shared.eventually(t, "the cloud shows the gateway's own container", waitTimeout, func(ctx context.Context) string {
		var own corev1.Pod
		if err := shared.storedObject(ctx, node, "pods", pod, &own); err != nil {
			return err.Error()
		}
		shown, err := shared.kube.CoreV1().Pods(faults.Namespace).Get(ctx, pod, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if a, b := own.Status.ContainerStatuses, shown.Status.ContainerStatuses; len(a) != 1 || len(b) != 1 || a[0].ContainerID != b[0].ContainerID {
			return fmt.Sprintf("the gateway has %+v, the cloud shows %+v", a, b)
		}
		return ""
	})
}

// cloneSequence returns the progress of the store of a gateway's copy, from its history.
func (r *testCluster) cloneSequence(t *testing.T, node string) (sequence uint64) {
	t.Helper()
	lines, _, err := history.Read(r.cluster.CloneHistory(node), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var cursor wire.Cursor
	for _, line := range lines {
		if line.Op != history.Acked {
			cursor = line.Cursor
		}
	}
	return cursor.Sequence
}
