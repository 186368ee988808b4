package autonomy

import (
	"sync"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/names"
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

// faultReporter reports annotations that cannot be parsed, each fault once: the fault of a Node by the Node's owner, that
// of a group by the replica that would own a Node of the group's name.
type faultReporter struct {
	owns func(node string) bool
	warn Warn
	log  *zap.Logger

	mu     sync.Mutex
	faults map[annotatedObject]*annotationFault // guarded by mu
}

func newFaultReporter(owns func(node string) bool, warn Warn, log *zap.Logger) *faultReporter {
	return &faultReporter{owns: owns, warn: warn, log: log, faults: map[annotatedObject]*annotationFault{}}
}

// recordFault records whether an annotation can be parsed.
func (r *faultReporter) recordFault(about corev1.ObjectReference, err error) {
	key := annotatedObject{about.Kind, about.Name}
	r.mu.Lock()
	was := r.faults[key]
	switch {
	case err == nil:
		delete(r.faults, key)
	case was == nil || was.text != err.Error() || was.about.UID != about.UID:
		r.faults[key] = &annotationFault{about: about, text: err.Error()}
	}
	r.mu.Unlock()
	if err != nil {
		r.reportFaults()
	}
}

// reportFaults reports the faults that this replica has to report and has not.
func (r *faultReporter) reportFaults() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.faults {
		if f.reported || !r.owns(f.about.Name) {
			continue
		}
		f.reported = true
		r.log.Warn("autonomy not understood, as if it were not there", zap.String("kind", f.about.Kind), zap.String("name", f.about.Name), zap.String("fault", f.text))
		r.warn(f.about, names.EventAutonomyNotUnderstood, f.text+": it counts as absent")
	}
}
