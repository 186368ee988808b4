// Package references finds the objects that an object refers to, and that a node which runs it therefore needs. Its functions are pure.
package references

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/frond-edge/frond/api/wire"
)

// Of returns the keys of what a pod, service account, claim or volume needs on a node, and of what a node that
// runs it may therefore read. Transitive references are not included.
func Of(o runtime.Object) []wire.Key {
	switch o := o.(type) {
	case *corev1.Pod:
		return OfPod(o)
	case *corev1.ServiceAccount:
		return OfServiceAccount(o)
	case *corev1.PersistentVolumeClaim:
		return OfClaim(o)
	case *corev1.PersistentVolume:
		return OfVolume(o)
	}
	return nil
}
