package suite_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/devcluster/wan"
	"github.com/frond-edge/frond/test/faults"
)

// createEvent creates an event at a gateway, as a program there would, with a message of this many bytes that does not compress well.
func (r *testCluster) createEvent(ctx context.Context, node, name string, bytes int) error {
	var api *kubernetes.Clientset
	err := r.withCluster(func(c *devcluster.Cluster) error {
		var err error
		api, err = kubernetes.NewForConfig(c.EdgeAPI(node))
		return err
	})
	if err != nil {
		return err
	}
	_, err = api.CoreV1().Events(faults.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: faults.Namespace, Name: name},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: faults.Namespace, Name: "none"},
		Type:           corev1.EventTypeNormal, Reason: "Tried", Message: randomText(bytes, 1), Source: corev1.EventSource{Host: node},
		FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Count: 1,
	}, metav1.CreateOptions{})
	return err
}

// eventReceived reports whether Kubernetes has the event, with a message of this many bytes.
func (r *testCluster) eventReceived(ctx context.Context, name string, bytes int) bool {
	event, err := r.kube.CoreV1().Events(faults.Namespace).Get(ctx, name, metav1.GetOptions{})
	return err == nil && event.Message == randomText(bytes, 1)
}

// createLargeEvents creates a large event at each gateway in turn, until ctx ends.
func (w *workload) createLargeEvents(ctx context.Context) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
		if err := w.rig.createEvent(sctx, nodes[i%len(nodes)], fmt.Sprint("large-", time.Now().UnixNano()), 500<<10); err != nil {
			w.failed.Add(1) // its gateway may be down
		}
		cancel()
	}
}

// TestLargeEvent_SlowLink: an event of 900 KB from a gateway at LARGE_RATE bytes a second (1 Mbit/s) takes longer than a link may be
// silent. It arrives in spite of a reset, with the parts sent before, and no small event waits for it.
func TestLargeEvent_SlowLink(t *testing.T) {
	shared.awaitSettled(t)
	const node, size = "edge-1", 900 << 10
	rate := envUint(t, "LARGE_RATE", 125_000)
	shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Shape(t.Context(), node, wan.Shape{Rate: int(rate)}) })
	prefix := fmt.Sprint("e", time.Now().UnixNano())
	before, links, began := shared.bytesUp(t, node), shared.linkCount(t, node), time.Now()
	if err := shared.createEvent(t.Context(), node, prefix+"-huge", size); err != nil {
		t.Fatal(err)
	}
	limit := waitTimeout + 2*size*time.Second/time.Duration(rate)
	small := func(name string) time.Duration {
		t.Helper()
		began := time.Now()
		if err := shared.createEvent(t.Context(), node, prefix+name, 10); err != nil {
			t.Fatal(err)
		}
		shared.eventually(t, "a small event comes", limit, func(ctx context.Context) string {
			if !shared.eventReceived(ctx, prefix+name, 10) {
				return "it is not there"
			}
			return ""
		})
		return time.Since(began)
	}
	behind := small("-behind")
	if shared.eventReceived(t.Context(), prefix+"-huge", size) {
		t.Error("the small event came behind the huge one")
	}
	shared.eventually(t, "a third of the huge event goes", limit, func(context.Context) string {
		if sent := shared.bytesUp(t, node) - before; sent < size/3 {
			return fmt.Sprintf("%d bytes", sent)
		}
		return ""
	})
	fallen := shared.linkCount(t, node) - links
	shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Reset(t.Context(), node) })
	after := small("-after")
	shared.eventually(t, "the huge event comes", limit, func(ctx context.Context) string {
		if !shared.eventReceived(ctx, prefix+"-huge", size) {
			return fmt.Sprintf("%d bytes", shared.bytesUp(t, node)-before)
		}
		return ""
	})
	t.Logf("the huge event took %s and %.2f times its bytes, a small one behind it %s, one after a reset %s; the link fell %d times by itself before, %d after",
		time.Since(began).Round(time.Millisecond), float64(shared.bytesUp(t, node)-before)/size, behind.Round(time.Millisecond), after.Round(time.Millisecond),
		fallen, shared.linkCount(t, node)-links-fallen-1)
	shared.awaitSettled(t)
}

// bytesUp counts the bytes sent by a gateway so far.
func (r *testCluster) bytesUp(t *testing.T, node string) (bytes int64) {
	t.Helper()
	r.mustCluster(t, func(c *devcluster.Cluster) error {
		for _, e := range c.Status(t.Context()).Edges {
			if e.Name == node {
				bytes = e.UpBytes
			}
		}
		return nil
	})
	return bytes
}

// linkCount counts the links that a gateway has made after its first one.
func (r *testCluster) linkCount(t *testing.T, node string) (number int) {
	t.Helper()
	r.mustCluster(t, func(c *devcluster.Cluster) error {
		metrics, err := c.EdgeMetrics(t.Context(), node)
		if err != nil {
			return err
		}
		for line := range strings.Lines(metrics) {
			if value, ok := strings.CutPrefix(line, "frond_link_reconnects_total"); ok {
				_, value, _ = strings.Cut(value, " ")
				number, err = strconv.Atoi(strings.TrimSpace(value))
			}
		}
		return err
	})
	return number
}
