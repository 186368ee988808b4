package groups

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/podcache"
)

// podIndex holds the pods on Nodes whose node selector names a group. Its methods may be called concurrently.
type podIndex struct {
	mu      sync.Mutex
	groupOf map[types.NamespacedName]string                  // guarded by mu
	byGroup map[string]map[types.NamespacedName]misplacedPod // guarded by mu
}

func newPodIndex() *podIndex {
	return &podIndex{groupOf: map[types.NamespacedName]string{}, byGroup: map[string]map[types.NamespacedName]misplacedPod{}}
}

// put records a version of a pod, and returns the group that it demands, or demanded until now; "" if it never did.
func (x *podIndex) put(p *podcache.Pod) (group, node string) {
	key := types.NamespacedName{Namespace: p.Namespace(), Name: p.Name()}
	demanded, demands := "", false
	if p.MayHaveAnnotation(names.LabelNodeGroup) { // the search is for the text, wherever it is
		if pod, err := p.Whole(); err == nil {
			demanded, demands = demandedGroup(pod, p.Mirror())
		}
	}
	if !demands {
		return x.remove(key)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.groupOf[key] = demanded
	if x.byGroup[demanded] == nil {
		x.byGroup[demanded] = map[types.NamespacedName]misplacedPod{}
	}
	x.byGroup[demanded][key] = misplacedPod{key: key, uid: types.UID(p.UID()), node: p.Node()}
	return demanded, p.Node()
}

// remove forgets a pod, and returns the group that it demanded and its node.
func (x *podIndex) remove(key types.NamespacedName) (group, node string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	group, known := x.groupOf[key]
	if !known {
		return "", ""
	}
	node = x.byGroup[group][key].node
	delete(x.groupOf, key)
	delete(x.byGroup[group], key)
	if len(x.byGroup[group]) == 0 {
		delete(x.byGroup, group)
	}
	return group, node
}

// misplaced returns the pods that demand a group and are on a node outside of it.
func (x *podIndex) misplaced(group string, outside func(node string) bool) []misplacedPod {
	x.mu.Lock()
	defer x.mu.Unlock()
	var pods []misplacedPod
	for _, p := range x.byGroup[group] {
		if outside(p.node) {
			pods = append(pods, p)
		}
	}
	return pods
}
