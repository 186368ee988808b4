package exercise

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/names"
)

// image is that of the pods. No gateway of a swarm pulls it.
const image = "registry.k8s.io/pause:3.10"

// payloadWords make a ConfigMap of 1 KiB, about as large as those of real applications.
const payloadWords = 73

func (w *workload) createConfigMap(ctx context.Context, node string) {
	w.request(ctx, "create ConfigMap", func() error {
		_, err := w.kube.CoreV1().ConfigMaps(w.namespace).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: configMapName(node), Labels: map[string]string{names.LabelLoadtestRun: w.run}},
			Data:       map[string]string{"op": "0", "text": strings.Repeat("configuration ", payloadWords)},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // of a phase before
			return nil
		}
		return err
	})
}

func (w *workload) newPod(node, name string) *corev1.Pod {
	no, grace := false, int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{names.LabelLoadtestRun: w.run}},
		Spec: corev1.PodSpec{
			NodeName: node, AutomountServiceAccountToken: &no, EnableServiceLinks: &no, TerminationGracePeriodSeconds: &grace,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:  []corev1.Container{{Name: "main", Image: image}},
			Volumes: []corev1.Volume{{Name: "page", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: configMapName(node)},
			}}}},
		},
	}
}

// watchPods ends the operations of pods that run, until ctx ends.
func (w *workload) watchPods(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := w.watchPodsOnce(ctx); err != nil && ctx.Err() == nil {
			w.log.Info("pods are watched again", zap.Error(err))
			_ = sleep(ctx, time.Second) // the loop looks at ctx
		}
	}
	return nil
}

func (w *workload) watchPodsOnce(ctx context.Context) error {
	list, err := w.kube.CoreV1().Pods(w.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	for i := range list.Items {
		w.observePod(&list.Items[i])
	}
	events, err := w.kube.CoreV1().Pods(w.namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok {
			return fmt.Errorf("watch pods: %s %v", event.Type, event.Object)
		}
		w.observePod(pod)
	}
	return nil
}

func (w *workload) observePod(pod *corev1.Pod) {
	if pod.Status.Phase == corev1.PodRunning {
		w.tracker.End("pod "+pod.Name, 0, time.Now())
	}
}
