package devices

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/frond-edge/frond/api/names"
)

// AssignedNode returns the node that a Device names, "" if none.
func AssignedNode(device *unstructured.Unstructured) string {
	node, _, _ := unstructured.NestedString(device.Object, "spec", "nodeName") // an error: as if none were named
	return node
}

// HolderOf returns the node whose gateway may drive a device: the one that has claimed it, or else the one that it names. After spec.nodeName has
// changed that is the old node, until its gateway has removed the Device or is known to be off.
func HolderOf(device *unstructured.Unstructured) string {
	if holder := device.GetAnnotations()[names.AnnotationDeviceHolder]; holder != "" {
		return holder
	}
	return AssignedNode(device)
}

// DeliveredTo returns the node to which a Device is delivered: the one that it names, or none while another one holds it.
func DeliveredTo(device *unstructured.Unstructured) string {
	node := AssignedNode(device)
	if node != HolderOf(device) {
		return ""
	}
	return node
}

// WithheldFrom reports whether a node must not be given a Device in any way, as it is on the move to it or from it: given, the new node would drive the
// device, and the old one has yet to confirm that it has removed it. Other nodes may read it.
func WithheldFrom(device *unstructured.Unstructured, node string) bool {
	assigned, holder := AssignedNode(device), HolderOf(device)
	return assigned != holder && (node == assigned || node == holder)
}
