package reports

import (
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/frond-edge/frond/api/names"
)

// podStatusPatch returns the patch from a pod's present status to the reported one, conditioned on the pod being the one
// that was read; nil if there is nothing to change.
func podStatusPatch(pod *corev1.Pod, reported corev1.PodStatus) ([]byte, error) {
	merged := mergePodStatus(pod.Status, reported)
	if apiequality.Semantic.DeepEqual(pod.Status, merged) {
		return nil, nil
	}
	return statusPatch(
		&corev1.Pod{Status: pod.Status},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID, ResourceVersion: pod.ResourceVersion}, Status: merged},
		corev1.Pod{})
}

func statusPatch(before, after, kind any) ([]byte, error) {
	old, err := json.Marshal(before)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	wanted, err := json.Marshal(after)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(old, wanted, kind)
	if err != nil {
		return nil, fmt.Errorf("make the patch: %w", err)
	}
	return patch, nil
}

// mergePodStatus returns the reported status, with the fields that others than the kubelet own taken from the present one.
func mergePodStatus(present, reported corev1.PodStatus) corev1.PodStatus {
	merged := *reported.DeepCopy()
	merged.NominatedNodeName = present.NominatedNodeName
	merged.ResourceClaimStatuses = present.ResourceClaimStatuses
	merged.ExtendedResourceClaimStatus = present.ExtendedResourceClaimStatus
	merged.NodeAllocatableResourceClaimStatuses = present.NodeAllocatableResourceClaimStatuses
	if merged.QOSClass == "" {
		merged.QOSClass = present.QOSClass // set at creation and never changed
	}
	if phaseEnded(present.Phase) && !phaseEnded(reported.Phase) {
		// A pod that has ended does not run again, whichever component has ended it.
		merged.Phase, merged.Reason, merged.Message = present.Phase, present.Reason, present.Message
	}
	merged.Conditions = nil
	kept := map[corev1.PodConditionType]bool{}
	for _, c := range present.Conditions {
		if !kubeletOwns(c.Type) {
			merged.Conditions, kept[c.Type] = append(merged.Conditions, c), true
		}
	}
	for _, c := range reported.Conditions {
		if !kept[c.Type] {
			merged.Conditions = append(merged.Conditions, c)
		}
	}
	return merged
}

func phaseEnded(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// kubeletOwns reports whether a kubelet sets and removes a condition. All other conditions are carried over; the node
// may add one that the API does not have yet (PodScheduled of a static pod, DisruptionTarget of an eviction).
func kubeletOwns(kind corev1.PodConditionType) bool {
	switch kind {
	case corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodReadyToStartContainers,
		corev1.PodResizePending, corev1.PodResizeInProgress, corev1.AllContainersRestarting:
		return true
	default:
		return false
	}
}

// nodeStatusPatch is podStatusPatch for a Node. It includes a kubelet's own labels and annotations, as the apiserver
// accepts them with the status.
func (w NodeAddressing) nodeStatusPatch(node, reported *corev1.Node) ([]byte, error) {
	before := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Labels: node.Labels, Annotations: node.Annotations}, Status: node.Status,
	}
	after := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Labels:      overlayKeys(node.Labels, reported.Labels, names.KubeletLabels()),
			Annotations: w.mergeAnnotations(node.Name, overlayKeys(node.Annotations, reported.Annotations, kubeletAnnotations())),
		},
		Status: w.mergeNodeStatus(node.Name, node.Status, reported.Status),
	}
	if apiequality.Semantic.DeepEqual(before, after) {
		return nil, nil
	}
	after.UID, after.ResourceVersion = node.UID, node.ResourceVersion
	patch, err := statusPatch(before, after, corev1.Node{})
	if err != nil || apiequality.Semantic.DeepEqual(before.Status.Addresses, after.Status.Addresses) {
		return patch, err
	}
	return replaceAddresses(patch, after.Status.Addresses)
}

// replaceAddresses makes a patch replace the whole list: its merge key is the type, and a node may have two addresses of one type.
func replaceAddresses(patch []byte, addresses []corev1.NodeAddress) ([]byte, error) {
	var whole map[string]any
	if err := json.Unmarshal(patch, &whole); err != nil {
		return nil, fmt.Errorf("read the patch: %w", err)
	}
	list := []any{map[string]string{"$patch": "replace"}}
	for _, address := range addresses {
		list = append(list, address)
	}
	status, ok := whole["status"].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("patch without a status: %.200s", patch)
	}
	status["addresses"] = list
	delete(status, "$setElementOrder/addresses")
	patch, err := json.Marshal(whole)
	if err != nil {
		return nil, fmt.Errorf("encode the patch: %w", err)
	}
	return patch, nil
}

// mergeNodeStatus returns the reported status, with the fields that the cloud owns taken from the present one: attached
// volumes, and the conditions that the report does not have. The addresses come from NodeAddressing.
func (w NodeAddressing) mergeNodeStatus(node string, present, reported corev1.NodeStatus) corev1.NodeStatus {
	merged := *reported.DeepCopy()
	merged.Addresses = w.mergeAddresses(node, reported.Addresses)
	merged.DaemonEndpoints = w.daemonEndpoints(node, reported.DaemonEndpoints)
	merged.VolumesAttached = present.VolumesAttached
	merged.Phase = present.Phase
	has := map[corev1.NodeConditionType]bool{}
	for _, c := range reported.Conditions {
		has[c.Type] = !names.CloudWrites(c.Type)
	}
	merged.Conditions = nil
	for _, c := range present.Conditions {
		if !has[c.Type] {
			merged.Conditions = append(merged.Conditions, c)
		}
	}
	for _, c := range reported.Conditions {
		if has[c.Type] {
			merged.Conditions = append(merged.Conditions, c)
		}
	}
	return merged
}

// overlayKeys returns the map with the values of some keys taken from another.
func overlayKeys(present, reported map[string]string, keys []string) map[string]string {
	merged := maps.Clone(present)
	for _, key := range keys {
		if value, ok := reported[key]; ok && merged[key] != value {
			if merged == nil {
				merged = map[string]string{}
			}
			merged[key] = value
		}
	}
	return merged
}

func kubeletAnnotations() []string {
	return []string{
		"volumes.kubernetes.io/controller-managed-attach-detach", "csi.volume.kubernetes.io/nodeid",
		"alpha.kubernetes.io/provided-node-ip",
	}
}
