package kubelet

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// awaitReady returns when the Node is Ready with a heartbeat of this kubelet, which began at a time, or with ctx's error.
func awaitReady(ctx context.Context, client kubernetes.Interface, node string, began time.Time) error {
	nodes := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", corev1.NamespaceAll, fields.OneTermEqualSelector("metadata.name", node))
	_, err := watchtools.UntilWithSync(ctx, nodes, &corev1.Node{}, nil, func(event watch.Event) (bool, error) {
		seen, ok := event.Object.(*corev1.Node)
		return ok && readySince(seen, began), nil
	})
	if err != nil {
		return fmt.Errorf("wait for ready node: %w", err)
	}
	return nil
}

// readySince reports whether the Ready condition is true and was written at or after began (the API keeps whole seconds).
func readySince(node *corev1.Node, began time.Time) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue && !c.LastHeartbeatTime.Time.Before(began.Truncate(time.Second))
		}
	}
	return false
}
