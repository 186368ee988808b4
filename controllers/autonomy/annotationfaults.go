package autonomy

import (
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Warn records a Warning event about an object. It must not block.
type Warn func(about corev1.ObjectReference, reason, message string)

// annotatedObject identifies an object that may carry the annotation: a Node or a NodeGroup.
type annotatedObject struct{ kind, name string }

// annotationFault is an error in an annotation.
type annotationFault struct {
	about    corev1.ObjectReference
	text     string
	reported bool
}

// nodeReference has the form of the kubelet's own events: `kubectl describe node` finds those whose UID is the node's name.
func nodeReference(name string) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(name)}
}

// recordFault records whether an annotation can be parsed.
func (k *TolerationController) recordFault(about corev1.ObjectReference, err error) {
	key := annotatedObject{about.Kind, about.Name}
	k.mu.Lock()
	was := k.faults[key]
	switch {
	case err == nil:
		delete(k.faults, key)
	case was == nil || was.text != err.Error() || was.about.UID != about.UID:
		k.faults[key] = &annotationFault{about: about, text: err.Error()}
	}
	k.mu.Unlock()
	if err != nil {
		k.reportFaults()
	}
}

// reportFaults reports each fault once: the fault of a Node by the Node's owner, that of a group by the replica that
// would own a Node of the group's name.
func (k *TolerationController) reportFaults() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range k.faults {
		if f.reported || !k.owner.Owns(f.about.Name) {
			continue
		}
		f.reported = true
		k.log.Warn("autonomy not understood, as if it were not there", zap.String("kind", f.about.Kind), zap.String("name", f.about.Name), zap.String("fault", f.text))
		k.warn(f.about, "AutonomyNotUnderstood", f.text+": it counts as absent")
	}
}
