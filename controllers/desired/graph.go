package desired

import "github.com/frond-edge/frond/api/wire"

// graph knows for each node which objects it needs, and for each needed object which nodes need it. It holds needed
// objects only. Needs are counted: an object stays with a node until the last thing there that needs it is gone.
// References never form a ring (pod → account or claim → volume → secret), so counting is exact.
// It has no lock of its own.
type graph struct {
	vertices map[wire.Key]*vertex
	// expand says what an object needs now; it may look at memory only.
	expand func(wire.Key) []wire.Key
	// onChange is told of each object that a node begins or ceases to need.
	onChange func(*nodeState, wire.Key)
}

// vertex is one needed object, whether it exists yet or not.
type vertex struct {
	key  wire.Key
	refs []*vertex
	// node is the node that an object belongs to by itself (a pod, a Node), and nil for what is only referenced.
	node *nodeState
	// needers counts, for each node, the needers there; home counts one.
	needers needCounter
}

// needCounter counts needers by node. Most objects have one node, which costs no map.
type needCounter struct {
	firstNode  *nodeState
	firstCount int
	others     map[*nodeState]int
}

func (t *needCounter) empty() bool { return t.firstCount == 0 && len(t.others) == 0 }

// add adds to a node's count and returns the new one.
func (t *needCounter) add(s *nodeState, by int) int {
	if t.firstCount == 0 && t.others[s] == 0 || t.firstNode == s {
		t.firstNode, t.firstCount = s, t.firstCount+by
		if t.firstCount == 0 {
			t.firstNode = nil
		}
		return t.firstCount
	}
	if t.others == nil {
		t.others = map[*nodeState]int{}
	}
	t.others[s] += by
	now := t.others[s]
	if now == 0 {
		delete(t.others, s)
	}
	return now
}

// all yields each node once.
func (t *needCounter) all(yield func(*nodeState) bool) {
	if t.firstCount != 0 && !yield(t.firstNode) {
		return
	}
	for s := range t.others {
		if !yield(s) {
			return
		}
	}
}

func newGraph(expand func(wire.Key) []wire.Key, changed func(*nodeState, wire.Key)) *graph {
	return &graph{vertices: map[wire.Key]*vertex{}, expand: expand, onChange: changed}
}

func (g *graph) ensureVertex(key wire.Key) *vertex {
	v := g.vertices[key]
	if v == nil {
		v = &vertex{key: key}
		g.vertices[key] = v
	}
	return v
}

// placeObject makes an object belong to a node, or to none.
func (g *graph) placeObject(key wire.Key, home *nodeState) {
	v := g.vertices[key]
	if v == nil && home == nil || v != nil && v.node == home {
		return
	}
	v = g.ensureVertex(key)
	old := v.node
	v.node = home
	if home != nil {
		g.addNeed(v, home)
	}
	if old != nil {
		g.removeNeed(v, old)
	}
}

// refreshReferences reads again what an object needs, if anybody needs the object.
func (g *graph) refreshReferences(key wire.Key) {
	v := g.vertices[key]
	if v == nil {
		return
	}
	keys := g.expand(key)
	if v.hasReferences(keys) {
		return
	}
	old := v.refs
	v.refs = nil
	for _, ref := range keys {
		v.refs = append(v.refs, g.ensureVertex(ref))
	}
	for s := range v.needers.all { // first the new, so that what stays is never out
		for _, ref := range v.refs {
			g.addNeed(ref, s)
		}
	}
	for s := range v.needers.all {
		for _, ref := range old {
			g.removeNeed(ref, s)
		}
	}
}

func (v *vertex) hasReferences(keys []wire.Key) bool {
	if len(keys) != len(v.refs) {
		return false
	}
	for i, ref := range v.refs {
		if ref.key != keys[i] {
			return false
		}
	}
	return true
}

func (g *graph) addNeed(v *vertex, s *nodeState) {
	if v.needers.empty() {
		for _, ref := range g.expand(v.key) {
			v.refs = append(v.refs, g.ensureVertex(ref))
		}
	}
	if v.needers.add(s, 1) > 1 {
		return
	}
	s.wants[v] = struct{}{}
	// What it needs goes first: a pod that reaches a node before its ConfigMaps makes the kubelet ask the cloud for each
	// of them, and cannot start at all if the link is cut in between.
	for _, ref := range v.refs {
		g.addNeed(ref, s)
	}
	g.onChange(s, v.key)
}

func (g *graph) removeNeed(v *vertex, s *nodeState) {
	if v.needers.add(s, -1) > 0 {
		return
	}
	delete(s.wants, v)
	g.onChange(s, v.key)
	for _, ref := range v.refs {
		g.removeNeed(ref, s)
	}
	if v.needers.empty() {
		delete(g.vertices, v.key)
	}
}
