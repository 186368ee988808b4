package loadtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// PodStartup creates bound pods, one after the other, and waits until a watch of the API shows each Running.
type PodStartup struct {
	// Pods is the number of pods of one round.
	Pods int
	// Peer is the peer's value, for the report.
	Peer string

	taken []float64
	made  int
}

const startupPod = "startup"

// Name returns the name of the scenario.
func (*PodStartup) Name() string { return "pod start" }

// Prepare starts one pod that is not measured: the first one finds cold caches.
func (s *PodStartup) Prepare(ctx context.Context, w *Environment) error {
	_, err := s.startPod(ctx, w)
	return err
}

// Once starts the pods of a round and removes them.
func (s *PodStartup) Once(ctx context.Context, w *Environment) error {
	for range s.Pods {
		took, err := s.startPod(ctx, w)
		if err != nil {
			return err
		}
		s.taken = append(s.taken, milliseconds(took))
	}
	return w.deleteObjects(ctx, "app="+startupPod, nil)
}

func (s *PodStartup) startPod(ctx context.Context, w *Environment) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, waitTimeout, fmt.Errorf("not within %s", waitTimeout))
	defer cancel()
	s.made++
	p := pausePod(fmt.Sprintf("%s-%d", startupPod, s.made), w.edgeNames()[0], nil)
	p.Labels["app"] = startupPod
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

// Lines returns the lines of the report.
func (s *PodStartup) Lines() []ReportLine {
	return []ReportLine{{
		Scenario: s.Name(), Measure: "bound pod made → Running in the API", Unit: unitTime,
		Summary: Summarize(s.taken), Peer: s.Peer,
	}}
}

// Close removes the remaining pods.
func (*PodStartup) Close(ctx context.Context, w *Environment) error {
	return w.deleteObjects(ctx, "app="+startupPod, nil)
}
