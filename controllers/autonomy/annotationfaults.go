package autonomy

import (
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Warn tells people of an object what is wrong with it. It must not block.
type Warn func(about corev1.ObjectReference, reason, message string)

// annotatedObject is an object that may be annotated: a Node or a NodeGroup.
type annotatedObject struct{ kind, name string }

// annotationFault is what is wrong with an annotation.
type annotationFault struct {
	about    corev1.ObjectReference
	text     string
	reported bool
}

// nodeReference is as the kubelet's own events have it: `kubectl describe node` finds those whose UID is the node's name.
func nodeReference(name string) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(name)}
}

// recordFault notes whether an annotation can be understood.
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

// reportFaults tells of each fault once: of a Node's its owner, of a group's who would own a Node of its name.
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
