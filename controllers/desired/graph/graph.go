// Package graph records which objects each node needs: those that belong to it, and all that these reference by any path.
package graph

import (
	"hash/maphash"
	"iter"
	"slices"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired/shortkey"
)

// Graph is a reference-counted graph of needs: for each node the objects it needs, and for each needed object the nodes
// that need it. It holds needed objects only. An object stays with a node until the last object there that needs it is
// gone. References never form a cycle (pod → account or claim → volume → secret), so counting is exact. The zero N stands
// for no node. A Graph has no lock of its own; the caller serializes all calls.
type Graph[N comparable] struct {
	// vertices are found by the hashes of their keys: a graph has millions of them, and each knows its key.
	vertices map[uint64]*vertex[N]
	count    int
	hash     func(shortkey.Key) uint64
	needs    map[N]map[*vertex[N]]struct{}
	// expand returns what an object needs now; it may read memory only.
	expand func(wire.Key) []wire.Key
	// onChange is called for each object that a node begins or ceases to need.
	onChange func(N, wire.Key)
}

// vertex is one needed object, whether it exists yet or not.
type vertex[N comparable] struct {
	key  shortkey.Key
	refs []*vertex[N]
	// next is another vertex whose key has the same hash.
	next *vertex[N]
	// node is the node that an object itself belongs to (a pod, a Node); the zero N for objects that are only referenced.
	node N
	// needers counts, for each node, the needers there; node counts as one.
	needers needCounter[N]
}

// needCounter counts needers by node. Most objects have one node, which needs no map.
type needCounter[N comparable] struct {
	firstNode  N
	others     map[N]int
	firstCount int32
}

func (t *needCounter[N]) empty() bool { return t.firstCount == 0 && len(t.others) == 0 }

// add adds to a node's count and returns the new one.
func (t *needCounter[N]) add(n N, by int) int {
	if t.firstCount == 0 && t.others[n] == 0 || t.firstNode == n {
		t.firstNode, t.firstCount = n, t.firstCount+int32(by)
		if t.firstCount == 0 {
			var none N
			t.firstNode = none
		}
		return int(t.firstCount)
	}
	if t.others == nil {
		t.others = map[N]int{}
	}
	t.others[n] += by
	now := t.others[n]
	if now == 0 {
		delete(t.others, n)
	}
	return now
}

// all yields each node once.
func (t *needCounter[N]) all(yield func(N) bool) {
	if t.firstCount != 0 && !yield(t.firstNode) {
		return
	}
	for n := range t.others {
		if !yield(n) {
			return
		}
	}
}

// New creates an empty graph. expand returns what an object needs now, from memory. changed is called for each object that
// a node begins or ceases to need; what the object references is announced before it.
func New[N comparable](expand func(wire.Key) []wire.Key, changed func(N, wire.Key)) *Graph[N] {
	seed := maphash.MakeSeed()
	return &Graph[N]{
		vertices: map[uint64]*vertex[N]{}, hash: func(key shortkey.Key) uint64 { return maphash.Comparable(seed, key) },
		needs: map[N]map[*vertex[N]]struct{}{}, expand: expand, onChange: changed,
	}
}

// Needs reports whether a node needs an object.
func (g *Graph[N]) Needs(node N, key wire.Key) bool {
	v := g.find(key)
	if v == nil {
		return false
	}
	_, ok := g.needs[node][v]
	return ok
}

// Has reports whether any node needs an object.
func (g *Graph[N]) Has(key wire.Key) bool { return g.find(key) != nil }

// Len returns the number of objects that are needed.
func (g *Graph[N]) Len() int { return g.count }

// Nodes yields each node that needs an object.
func (g *Graph[N]) Nodes(key wire.Key) iter.Seq[N] {
	if v := g.find(key); v != nil {
		return v.needers.all
	}
	return func(func(N) bool) {}
}

// Count returns the number of objects that a node needs.
func (g *Graph[N]) Count(node N) int { return len(g.needs[node]) }

// Objects yields each object that a node needs.
func (g *Graph[N]) Objects(node N) iter.Seq[wire.Key] {
	return func(yield func(wire.Key) bool) {
		for v := range g.needs[node] {
			if !yield(v.key.Wire()) {
				return
			}
		}
	}
}

// Referrer returns an object that a node needs and that references another one, the first by name; the other one itself
// if there is none, and the zero Key for an object that is not needed.
func (g *Graph[N]) Referrer(node N, key wire.Key) wire.Key {
	v := g.find(key)
	if v == nil {
		return wire.Key{}
	}
	var found []wire.Key
	for needer := range g.needs[node] {
		if slices.Contains(needer.refs, v) {
			found = append(found, needer.key.Wire())
		}
	}
	if len(found) == 0 {
		return key
	}
	return slices.MinFunc(found, wire.Key.Compare)
}

func (g *Graph[N]) ensureVertex(key wire.Key) *vertex[N] {
	v := g.find(key)
	if v == nil {
		short := shortkey.Of(key)
		at := g.hash(short)
		v = &vertex[N]{key: short, next: g.vertices[at]}
		g.vertices[at] = v
		g.count++
	}
	return v
}

// find returns the vertex of an object; nil if no node needs the object.
func (g *Graph[N]) find(key wire.Key) *vertex[N] {
	short := shortkey.Of(key)
	v := g.vertices[g.hash(short)]
	for v != nil && v.key != short {
		v = v.next
	}
	return v
}

// remove removes a vertex that no node needs.
func (g *Graph[N]) remove(v *vertex[N]) {
	at := g.hash(v.key)
	before := g.vertices[at]
	switch {
	case before != v:
		for before.next != v {
			before = before.next
		}
		before.next = v.next
	case v.next != nil:
		g.vertices[at] = v.next
	default:
		delete(g.vertices, at)
	}
	g.count--
}

// expandTo reads the references of a vertex.
func (g *Graph[N]) expandTo(v *vertex[N], keys []wire.Key) {
	v.refs = nil
	if len(keys) > 0 {
		v.refs = make([]*vertex[N], len(keys)) // of exactly this size
	}
	for i, ref := range keys {
		v.refs[i] = g.ensureVertex(ref)
	}
}

// Place assigns an object to the node that it belongs to, or to none.
func (g *Graph[N]) Place(key wire.Key, home N) {
	var none N
	v := g.find(key)
	if v == nil && home == none || v != nil && v.node == home {
		return
	}
	v = g.ensureVertex(key)
	old := v.node
	v.node = home
	if home != none {
		g.addNeed(v, home)
	}
	if old != none {
		g.removeNeed(v, old)
	}
}

// Refresh reads again what an object needs, if any node needs the object.
func (g *Graph[N]) Refresh(key wire.Key) {
	v := g.find(key)
	if v == nil {
		return
	}
	keys := g.expand(key)
	if v.hasReferences(keys) {
		return
	}
	old := v.refs
	g.expandTo(v, keys)
	added, dropped := difference(old, v.refs)
	for n := range v.needers.all { // adds the new references first, so that objects that stay are never dropped in between
		for _, ref := range added {
			g.addNeed(ref, n)
		}
	}
	for n := range v.needers.all {
		for _, ref := range dropped {
			g.removeNeed(ref, n)
		}
	}
}

// difference returns which references are new, and which are gone. A namespace may have a thousand Services that ten thousand
// nodes need: one more must not cost all of them.
func difference[N comparable](old, now []*vertex[N]) (added, dropped []*vertex[N]) {
	left := make(map[*vertex[N]]int, len(old))
	for _, ref := range old {
		left[ref]++
	}
	for _, ref := range now {
		if left[ref] > 0 {
			left[ref]--
			continue
		}
		added = append(added, ref)
	}
	for _, ref := range old {
		if left[ref] > 0 {
			left[ref]--
			dropped = append(dropped, ref)
		}
	}
	return added, dropped
}

func (v *vertex[N]) hasReferences(keys []wire.Key) bool {
	if len(keys) != len(v.refs) {
		return false
	}
	for i, ref := range v.refs {
		if ref.key != shortkey.Of(keys[i]) {
			return false
		}
	}
	return true
}

func (g *Graph[N]) addNeed(v *vertex[N], n N) {
	if v.needers.empty() {
		g.expandTo(v, g.expand(v.key.Wire()))
	}
	if v.needers.add(n, 1) > 1 {
		return
	}
	if g.needs[n] == nil {
		g.needs[n] = map[*vertex[N]]struct{}{}
	}
	g.needs[n][v] = struct{}{}
	// References are added before the object: a pod that reaches a node before its ConfigMaps makes the kubelet request
	// each of them from the cloud, and cannot start at all if the link is cut in between.
	for _, ref := range v.refs {
		g.addNeed(ref, n)
	}
	g.onChange(n, v.key.Wire())
}

func (g *Graph[N]) removeNeed(v *vertex[N], n N) {
	if v.needers.add(n, -1) > 0 {
		return
	}
	if delete(g.needs[n], v); len(g.needs[n]) == 0 {
		delete(g.needs, n)
	}
	g.onChange(n, v.key.Wire())
	for _, ref := range v.refs {
		g.removeNeed(ref, n)
	}
	if v.needers.empty() {
		g.remove(v)
	}
}
