package payload

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/references"
)

// ForceDeleted reports whether a pod is being deleted with a grace period of zero: by force, or as the last step of an
// orderly termination. The API shows such a pod for a moment before it disappears, or for as long as it has finalizers.
// A node that receives it in this state kills it.
func ForceDeleted(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
}

// DeletionReason returns the reason for which a pod's removal is expected, "" if there is none.
func DeletionReason(pod *corev1.Pod) wire.DeletionReason {
	mirror := references.IsMirror(pod)
	grace := pod.Spec.TerminationGracePeriodSeconds
	switch {
	case pod.DeletionTimestamp != nil && !ForceDeleted(pod):
		return wire.DeletionTerminating
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return wire.DeletionPodEnded
	case mirror || grace != nil && *grace == 0:
		return wire.DeletionWithoutGrace
	}
	return ""
}
