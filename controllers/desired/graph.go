package desired

import "github.com/frond-edge/frond/api/wire"

// graph is a reference-counted graph of needs: for each node the objects it needs, and for each needed object the nodes
// that need it. It holds needed objects only. An object stays with a node until the last object there that needs it is
// gone. References never form a cycle (pod → account or claim → volume → secret), so counting is exact. It has no lock of its own.
type graph struct {
	vertices map[wire.Key]*vertex
	// expand returns what an object needs now; it may read memory only.
	expand func(wire.Key) []wire.Key
	// onChange is called for each object that a node begins or ceases to need.
	onChange func(*nodeState, wire.Key)
}

// vertex is one needed object, whether it exists yet or not.
type vertex struct {
	key  wire.Key
	refs []*vertex
	// node is the node that an object itself belongs to (a pod, a Node); nil for objects that are only referenced.
	node *nodeState
	// needers counts, for each node, the needers there; node counts as one.
	needers needCounter
}

// needCounter counts needers by node. Most objects have one node, which needs no map.
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

// placeObject assigns an object to a node, or to none.
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

// refreshReferences reads again what an object needs, if any node needs the object.
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
	for s := range v.needers.all { // adds the new references first, so that objects that stay are never dropped in between
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
	// References are added before the object: a pod that reaches a node before its ConfigMaps makes the kubelet request
	// each of them from the cloud, and cannot start at all if the link is cut in between.
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
