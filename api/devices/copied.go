package devices

import "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

// The fields in which cloudcore notes, when it copies a DeviceStatus into the status of the Device, which generation the copy has made and of which
// generation the rest of the Device is. The Device has no status subresource, so a copy counts as a change of it.
const (
	CopyField               = "frond" // in status
	CopyFieldGeneration     = "generation"
	CopyFieldSpecGeneration = "specGeneration"
)

// SpecGeneration returns the generation of a Device's last change that was not a copy of its DeviceStatus: what gateways report about
// (observedGeneration) is never less once they have that change.
func SpecGeneration(device *unstructured.Unstructured) int64 {
	made, found, err := unstructured.NestedInt64(device.Object, "status", CopyField, CopyFieldGeneration)
	if err != nil || !found || made != device.GetGeneration() {
		return device.GetGeneration()
	}
	spec, found, err := unstructured.NestedInt64(device.Object, "status", CopyField, CopyFieldSpecGeneration)
	if err != nil || !found || spec <= 0 || spec > made {
		return made
	}
	return spec
}
