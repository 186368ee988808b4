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
	// changed is told of each object that a node begins or ceases to need.
	changed func(*site, wire.Key)
}

// vertex is one needed object, whether it exists yet or not.
type vertex struct {
	key  wire.Key
	refs []*vertex
	// home is the node that an object belongs to by itself (a pod, a Node), and nil for what is only referenced.
	home *site
	// sites counts, for each node, the needers there; home counts one.
	sites tally
}

// tally counts needers by node. Most objects have one node, which costs no map.
type tally struct {
	one  *site
	n    int
	more map[*site]int
}

func (t *tally) empty() bool { return t.n == 0 && len(t.more) == 0 }

// change adds to a node's count and returns the new one.
func (t *tally) change(s *site, by int) int {
	if t.n == 0 && t.more[s] == 0 || t.one == s {
		t.one, t.n = s, t.n+by
		if t.n == 0 {
			t.one = nil
		}
		return t.n
	}
	if t.more == nil {
		t.more = map[*site]int{}
	}
	t.more[s] += by
	now := t.more[s]
	if now == 0 {
		delete(t.more, s)
	}
	return now
}

// all yields each node once.
func (t *tally) all(yield func(*site) bool) {
	if t.n != 0 && !yield(t.one) {
		return
	}
	for s := range t.more {
		if !yield(s) {
			return
		}
	}
}

func newGraph(expand func(wire.Key) []wire.Key, changed func(*site, wire.Key)) *graph {
	return &graph{vertices: map[wire.Key]*vertex{}, expand: expand, changed: changed}
}

func (g *graph) vertex(key wire.Key) *vertex {
	v := g.vertices[key]
	if v == nil {
		v = &vertex{key: key}
		g.vertices[key] = v
	}
	return v
}

// place makes an object belong to a node, or to none.
func (g *graph) place(key wire.Key, home *site) {
	v := g.vertices[key]
	if v == nil && home == nil || v != nil && v.home == home {
		return
	}
	v = g.vertex(key)
	old := v.home
	v.home = home
	if home != nil {
		g.need(v, home)
	}
	if old != nil {
		g.drop(v, old)
	}
}

// refresh reads again what an object needs, if anybody needs the object.
func (g *graph) refresh(key wire.Key) {
	v := g.vertices[key]
	if v == nil {
		return
	}
	keys := g.expand(key)
	if v.refers(keys) {
		return
	}
	old := v.refs
	v.refs = nil
	for _, ref := range keys {
		v.refs = append(v.refs, g.vertex(ref))
	}
	for s := range v.sites.all { // first the new, so that what stays is never out
		for _, ref := range v.refs {
			g.need(ref, s)
		}
	}
	for s := range v.sites.all {
		for _, ref := range old {
			g.drop(ref, s)
		}
	}
}

func (v *vertex) refers(keys []wire.Key) bool {
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

func (g *graph) need(v *vertex, s *site) {
	if v.sites.empty() {
		for _, ref := range g.expand(v.key) {
			v.refs = append(v.refs, g.vertex(ref))
		}
	}
	if v.sites.change(s, 1) > 1 {
		return
	}
	s.wants[v] = struct{}{}
	// What it needs goes first: a pod that reaches a node before its ConfigMaps makes the kubelet ask the cloud for each
	// of them, and cannot start at all if the link is cut in between.
	for _, ref := range v.refs {
		g.need(ref, s)
	}
	g.changed(s, v.key)
}

func (g *graph) drop(v *vertex, s *site) {
	if v.sites.change(s, -1) > 0 {
		return
	}
	delete(s.wants, v)
	g.changed(s, v.key)
	for _, ref := range v.refs {
		g.drop(ref, s)
	}
	if v.sites.empty() {
		delete(g.vertices, v.key)
	}
}
