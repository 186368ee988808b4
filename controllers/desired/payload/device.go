package payload

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/jobs"
)

func isDevice(o *unstructured.Unstructured) bool {
	gvk := o.GroupVersionKind()
	return gvk.Group == devices.Group && gvk.Kind == devices.DeviceKind
}

func isTask(o *unstructured.Unstructured) bool {
	gvk := o.GroupVersionKind()
	return gvk.Group == jobs.Group && gvk.Kind == jobs.NodeTaskKind
}

// withoutReports removes from a Device's status what its gateway has reported: twins, state, lastOnlineTime. What its users write there stays: how its
// state is to be reported. The object is a shallow copy.
func withoutReports(o *unstructured.Unstructured) {
	status, ok := o.Object["status"].(map[string]any)
	if !ok {
		return
	}
	rule := map[string]any{}
	for _, field := range []string{"reportToCloud", "reportCycle"} {
		if value, set := status[field]; set {
			rule[field] = value
		}
	}
	if len(rule) == 0 {
		delete(o.Object, "status")
		return
	}
	o.Object["status"] = rule
}
