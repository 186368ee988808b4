package nodehealth

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/controllers/podcache"
)

// markedPods are the pods that somebody else than their kubelet has set to not ready, by node.
type markedPods struct {
	mu     sync.Mutex
	byNode map[string]map[types.NamespacedName]struct{} // guarded by mu
}

func newMarkedPods() *markedPods {
	return &markedPods{byNode: map[string]map[types.NamespacedName]struct{}{}}
}

// record updates what is known of a pod, and reports whether it is marked and was not before.
func (m *markedPods) record(pod *podcache.Pod) (news bool) {
	if !pod.MarkedNotReady() || pod.Node() == "" {
		m.remove(pod)
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.byNode[pod.Node()]
	if of == nil {
		of = map[types.NamespacedName]struct{}{}
		m.byNode[pod.Node()] = of
	}
	_, known := of[keyOf(pod)]
	of[keyOf(pod)] = struct{}{}
	return !known
}

func (m *markedPods) remove(pod *podcache.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.byNode[pod.Node()]
	delete(of, keyOf(pod))
	if len(of) == 0 {
		delete(m.byNode, pod.Node())
	}
}

// of reports whether pods of a node are marked.
func (m *markedPods) of(node string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.byNode[node]) > 0
}

func keyOf(pod *podcache.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace(), Name: pod.Name()}
}
