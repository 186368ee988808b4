package references

import corev1 "k8s.io/api/core/v1"

// mirrorAnnotation marks the API's copy of a static pod; the kubelet creates and removes it at once.
const mirrorAnnotation = "kubernetes.io/config.mirror"

// IsMirror reports whether a pod is the API's copy of a static pod.
func IsMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[mirrorAnnotation]
	return ok
}
