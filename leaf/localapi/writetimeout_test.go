package localapi_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An outbox on a disk that hangs delays a status for a bounded time, and does not delay reads and other objects.
func TestServer_HangingOutboxBoundsWrites(t *testing.T) {
	t.Parallel()
	g := newGateway(t, true)
	g.deliverObjects(newPod("a", "u1", "1"))
	g.sent.hangReports()
	c := g.newClient(true)
	p, err := c.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.Status.Phase = corev1.PodRunning
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := c.CoreV1().Pods("default").UpdateStatus(ctx, p, metav1.UpdateOptions{})
		done <- err
	}()
	if _, err := c.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("list meanwhile: %v", err)
	}
	if err := <-done; err == nil || ctx.Err() != nil {
		t.Errorf("the write ended with %v, and the client's patience with %v", err, ctx.Err())
	}
	g.sent.refuseReports(nil)
	if _, err := c.CoreV1().Pods("default").UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil {
		t.Errorf("the same write afterwards: %v", err)
	}
}
