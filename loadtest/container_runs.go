package loadtest

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// containerRuns identifies the present run of each container of the selected pods, as Kubernetes reports it.
func (w *Environment) containerRuns(ctx context.Context, selector string) (map[string]string, error) {
	list, err := w.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	runs := map[string]string{}
	for i := range list.Items {
		p := &list.Items[i]
		for _, c := range p.Status.ContainerStatuses {
			runs[p.Name+"/"+c.Name] = fmt.Sprint(p.UID, " ", c.ContainerID, " ", c.RestartCount)
		}
	}
	return runs, nil
}

// countChanged counts the containers whose run changed.
func countChanged(before, after map[string]string) int {
	n := 0
	for name, run := range before {
		if after[name] != run {
			n++
		}
	}
	return n
}
