package devicecopy

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/frond-edge/frond/api/devices"
)

// The fields of a status that are copied.
const (
	twinsField      = "twins"
	stateField      = "state"
	lastOnlineField = "lastOnlineTime"
)

// patchFor returns the merge patch that gives a Device the values of its DeviceStatus, nil if it has them or if the status is another Device's. It is
// only valid for the Device as it is. Like KubeEdge, it leaves a lastOnlineTime of which the status says nothing.
func patchFor(device, status *unstructured.Unstructured) ([]byte, error) {
	owners := status.GetOwnerReferences()
	if len(owners) == 0 || owners[0].UID != device.GetUID() {
		return nil, nil
	}
	reported, _, _ := unstructured.NestedMap(status.Object, "status") // an error: another writer's, as if it were empty
	present, _, _ := unstructured.NestedMap(device.Object, "status")
	change := map[string]any{}
	for _, field := range []string{twinsField, stateField, lastOnlineField} {
		value := reported[field]
		if field == lastOnlineField && (value == nil || value == "") || equality.Semantic.DeepEqual(value, present[field]) {
			continue
		}
		change[field] = value // nil removes it
	}
	if len(change) == 0 {
		return nil, nil
	}
	change[devices.CopyField] = map[string]any{
		devices.CopyFieldGeneration: device.GetGeneration() + 1, devices.CopyFieldSpecGeneration: devices.SpecGeneration(device),
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": device.GetUID(), "resourceVersion": device.GetResourceVersion()}, "status": change,
	})
	if err != nil {
		return nil, fmt.Errorf("encode status of device %s/%s: %w", device.GetNamespace(), device.GetName(), err)
	}
	return patch, nil
}
