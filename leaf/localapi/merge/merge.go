// Package merge puts together an object of which the cloud and the node each own a part.
package merge

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
)

// ForNode returns Desired for the objects of this node; objects of other nodes are taken from the cloud unchanged.
func ForNode(node string) func(key wire.Key, local, desired []byte) ([]byte, error) {
	return func(key wire.Key, local, desired []byte) ([]byte, error) {
		switch {
		case key.Group == "" && key.Resource == "pods":
			var pod struct {
				Spec struct {
					NodeName string `json:"nodeName"`
				} `json:"spec"`
			}
			if json.Unmarshal(desired, &pod) == nil && pod.Spec.NodeName != node {
				return desired, nil
			}
		case (key.Group == "" && key.Resource == "nodes" || key.Group == "storage.k8s.io" && key.Resource == "csinodes") && key.Name != node:
			return desired, nil
		}
		return Desired(key, local, desired)
	}
}

// Desired merges the node's state of an object with a newer state from the cloud, for store.Config.Merge. Both have
// the same UID, or the local one has none yet.
//
// A pod's status is the kubelet's, except conditions and fields that others write, and a terminal phase set by the cloud. A
// node's status is the kubelet's, except foreign conditions and the list of attached volumes. Labels and annotations that
// only the kubelet sets are kept, as a report of them may still be in flight. Every other object is the cloud's alone.
func Desired(key wire.Key, local, desired []byte) ([]byte, error) {
	switch {
	case key.Group == "" && key.Resource == "pods":
		return mergeJSON(local, desired, mergePod)
	case key.Group == "" && key.Resource == "nodes":
		return mergeJSON(local, desired, mergeNode)
	case key.Group == "storage.k8s.io" && key.Resource == "csinodes":
		// Only the kubelet writes it; the cloud's copy is an earlier report.
		return mergeCSINode(local, desired)
	default:
		return desired, nil
	}
}

// mergeJSON works on the JSON's top level, so that fields unknown to these types pass through.
func mergeJSON[T any](local, desired []byte, join func(local, desired *T) (status any, metadata map[string]any)) ([]byte, error) {
	var l, d T
	if err := utiljson.Unmarshal(local, &l); err != nil {
		return nil, fmt.Errorf("merge: local object: %w", err)
	}
	if err := utiljson.Unmarshal(desired, &d); err != nil {
		return nil, fmt.Errorf("merge: desired object: %w", err)
	}
	out, err := jsonFields(desired)
	if err != nil {
		return nil, fmt.Errorf("merge: desired object: %w", err)
	}
	status, metadata := join(&l, &d)
	if out["status"], err = json.Marshal(status); err != nil {
		return nil, fmt.Errorf("merge: %w", err)
	}
	if len(metadata) > 0 {
		m, err := jsonFields(out["metadata"])
		if err != nil {
			return nil, fmt.Errorf("merge: desired metadata: %w", err)
		}
		for field, value := range metadata {
			if m[field], err = json.Marshal(value); err != nil {
				return nil, fmt.Errorf("merge: %w", err)
			}
		}
		if out["metadata"], err = json.Marshal(m); err != nil {
			return nil, fmt.Errorf("merge: %w", err)
		}
	}
	data, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("merge: %w", err)
	}
	return data, nil
}

func mergePod(local, desired *corev1.Pod) (any, map[string]any) {
	l, d := local.Status, desired.Status
	if l.Phase == "" && len(l.ContainerStatuses) == 0 && l.StartTime == nil {
		return d, nil // the kubelet has not written a status yet
	}
	out := l
	out.Conditions = mergeConditions(l.Conditions, d.Conditions, podConditionType, isKubeletPodCondition)
	// Written by the scheduler and by the resource claim controller.
	out.NominatedNodeName = d.NominatedNodeName
	out.ResourceClaimStatuses = d.ResourceClaimStatuses
	out.ExtendedResourceClaimStatus = d.ExtendedResourceClaimStatus
	if d.QOSClass != "" {
		out.QOSClass = d.QOSClass
	}
	if podEnded(d.Phase) && !podEnded(l.Phase) { // for example a pod that was failed for an eviction
		out.Phase, out.Reason, out.Message = d.Phase, d.Reason, d.Message
	}
	return out, nil
}

func podEnded(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }

func podConditionType(c corev1.PodCondition) string { return string(c.Type) }

// isKubeletPodCondition reports whether the kubelet owns a condition (k8s.io/kubernetes pkg/kubelet/types/pod_status.go).
func isKubeletPodCondition(kind string) bool {
	switch corev1.PodConditionType(kind) {
	case corev1.PodScheduled, corev1.PodReady, corev1.PodInitialized, corev1.ContainersReady, corev1.PodResizeInProgress,
		corev1.PodResizePending, corev1.PodReadyToStartContainers, corev1.AllContainersRestarting:
		return true
	default:
		return false
	}
}

// mergeConditions keeps the local state of the kubelet's conditions, and the cloud's state of the others. A condition that
// only the node has stays: its report is in flight, or its writer runs on the gateway.
func mergeConditions[C any](local, desired []C, kind func(C) string, kubelets func(string) bool) []C {
	here := map[string]bool{}
	there := map[string]C{}
	for _, c := range desired {
		there[kind(c)] = c
	}
	var out []C
	for _, c := range local {
		here[kind(c)] = true
		if d, ok := there[kind(c)]; ok && !kubelets(kind(c)) {
			c = d
		}
		out = append(out, c)
	}
	for _, c := range desired {
		if !here[kind(c)] {
			out = append(out, c)
		}
	}
	return out
}

func mergeNode(local, desired *corev1.Node) (any, map[string]any) {
	metadata := map[string]any{}
	if labels, changed := keepLocalValues(local.Labels, desired.Labels, isKubeletLabel); changed {
		metadata["labels"] = labels
	}
	if annotations, changed := keepLocalValues(local.Annotations, desired.Annotations, isKubeletAnnotation); changed {
		metadata["annotations"] = annotations
	}
	l, d := local.Status, desired.Status
	if len(l.Conditions) == 0 && len(l.Capacity) == 0 {
		return d, metadata // the kubelet has not written a status yet
	}
	out := l
	out.Conditions = mergeConditions(l.Conditions, d.Conditions, nodeConditionType, isKubeletNodeCondition)
	out.VolumesAttached = d.VolumesAttached // the attach-detach controller sets it for the kubelet
	return out, metadata
}

func nodeConditionType(c corev1.NodeCondition) string { return string(c.Type) }

// isKubeletNodeCondition reports whether the kubelet owns a condition, or the agent (the store's disk). While a node is
// offline, the cloud sets them to Unknown; that describes the link, not the node, and must not be merged back.
func isKubeletNodeCondition(kind string) bool {
	switch corev1.NodeConditionType(kind) {
	case corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, names.ConditionStorage:
		return true
	default:
		return false
	}
}

// isKubeletLabel reports whether the kubelet sets a label from its machine and corrects it at each start.
func isKubeletLabel(name string) bool {
	switch name {
	case corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch":
		return true
	default:
		return false
	}
}

func isKubeletAnnotation(name string) bool {
	switch name {
	case "volumes.kubernetes.io/controller-managed-attach-detach", "csi.volume.kubernetes.io/nodeid",
		"alpha.kubernetes.io/provided-node-ip":
		return true
	default:
		return false
	}
}

// keepLocalValues returns desired with the local values of the names for which own is true.
func keepLocalValues(local, desired map[string]string, own func(string) bool) (map[string]string, bool) {
	out := map[string]string{}
	maps.Copy(out, desired)
	changed := false
	for k, v := range local {
		if d, ok := desired[k]; own(k) && (!ok || d != v) {
			out[k], changed = v, true
		}
	}
	return out, changed
}

func mergeCSINode(local, desired []byte) ([]byte, error) {
	l, err := jsonFields(local)
	if err != nil {
		return nil, fmt.Errorf("merge: local object: %w", err)
	}
	d, err := jsonFields(desired)
	if err != nil {
		return nil, fmt.Errorf("merge: desired object: %w", err)
	}
	if spec, ok := l["spec"]; ok {
		d["spec"] = spec
	}
	data, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("merge: %w", err)
	}
	return data, nil
}

var errNotObject = errors.New("not a JSON object")

// jsonFields splits a JSON object; null is not an object.
func jsonFields(object []byte) (map[string]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(object, &fields); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotObject, err)
	}
	if fields == nil {
		return nil, errNotObject
	}
	return fields, nil
}
