package applications

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/frond-edge/frond/controllers/applications/render"
)

// podCounts are the pods of one object.
type podCounts struct{ wanted, ready int }

// countPods returns how many pods an object wants, and how many of them are certainly ready with its present template. An object without pods
// counts as one, ready when it exists. live is nil for an object that does not exist; applied tells whether it has the wanted template.
func countPods(o render.Object, live *unstructured.Unstructured, applied bool) podCounts {
	field := func(path ...string) (int, bool) {
		if live == nil {
			return 0, false
		}
		n, found, err := unstructured.NestedInt64(live.Object, path...)
		return int(n), found && err == nil
	}
	observed, _ := field("status", "observedGeneration")
	current := applied && live != nil && int64(observed) >= live.GetGeneration()
	number := func(name string) int {
		if !current {
			return 0
		}
		n, _ := field("status", name)
		return n
	}
	switch o.ID.Kind {
	case "Deployment", "StatefulSet":
		wanted := 1
		if n, found := field("spec", "replicas"); found {
			wanted = n
		} else if o.Content != nil {
			if n, found, err := unstructured.NestedInt64(o.Content.Object, "spec", "replicas"); found && err == nil {
				wanted = int(n)
			}
		}
		// Ready pods may be of an earlier template: at most as many as there are such pods.
		earlier := max(number("replicas")-number("updatedReplicas"), 0)
		return podCounts{wanted, min(max(number("readyReplicas")-earlier, 0), wanted)}
	case "DaemonSet":
		wanted := number("desiredNumberScheduled")
		earlier := max(number("currentNumberScheduled")-number("updatedNumberScheduled"), 0)
		return podCounts{wanted, min(max(number("numberReady")-earlier, 0), wanted)}
	}
	if live != nil && applied {
		return podCounts{1, 1}
	}
	return podCounts{1, 0}
}
