package loadtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/frond-edge/frond/loadtest/poll"
)

// podStartup creates bound pods, one after the other, and waits until a watch of the API shows each Running. The first one, which finds
// cold caches, is not measured.
func podStartup(pods int, peer string) scenario {
	return scenario{"pod start", func(ctx context.Context, w *Environment) error {
		for i := range 1 + pods {
			took, err := startPod(ctx, w, fmt.Sprintf("startup-%d", i+1))
			if err != nil {
				return err
			}
			if i > 0 {
				w.recordTime(measure{text: "bound pod made → Running in the API", peer: peer}, took)
			}
		}
		return nil
	}}
}

func startPod(ctx context.Context, w *Environment, name string) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, poll.Timeout, fmt.Errorf("not within %s", poll.Timeout))
	defer cancel()
	p := pausePod(name, w.edgeNames()[0], nil)
	pods := w.kube.CoreV1().Pods(namespace)
	seen, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + p.Name})
	if err != nil {
		return 0, fmt.Errorf("watch pod: %w", err)
	}
	defer seen.Stop()
	began := time.Now()
	if _, err := pods.Create(ctx, p, metav1.CreateOptions{}); err != nil {
		return 0, fmt.Errorf("make pod: %w", err)
	}
	for event := range seen.ResultChan() {
		if now, ok := event.Object.(*corev1.Pod); ok && event.Type != watch.Deleted && now.Status.Phase == corev1.PodRunning {
			return time.Since(began), nil
		}
	}
	return 0, errors.Join(fmt.Errorf("pod %s was not seen to run", p.Name), context.Cause(ctx))
}
