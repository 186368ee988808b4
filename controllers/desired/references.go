package desired

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/frond-edge/frond/api/wire"
)

// References returns the keys of what a pod, service account, claim or volume needs on a node, and of what a node that
// runs it may therefore read. Transitive references are not included.
func References(o runtime.Object) []wire.Key {
	switch o := o.(type) {
	case *corev1.Pod:
		return podRefs(o)
	case *corev1.ServiceAccount:
		return accountRefs(o)
	case *corev1.PersistentVolumeClaim:
		return claimRefs(o)
	case *corev1.PersistentVolume:
		return volumeRefs(o)
	}
	return nil
}
