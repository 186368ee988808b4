package graph_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired/graph"
)

func keyOf(resource, namespace, name string) wire.Key {
	return wire.Key{Resource: resource, Namespace: namespace, Name: name}
}

// node stands for a node of the engine, which the graph knows by its address.
type node struct{ name string }

// drivenGraph is a graph over a map of references.
type drivenGraph struct {
	*graph.Graph[*node]
	nodes map[string]*node
	refs  map[wire.Key][]wire.Key
	// onChange is called for each notification unless it is nil.
	onChange func(wire.Key)
}

func newDrivenGraph() *drivenGraph {
	g := &drivenGraph{nodes: map[string]*node{"": nil}, refs: map[wire.Key][]wire.Key{}}
	g.Graph = graph.New(func(k wire.Key) []wire.Key { return g.refs[k] }, func(_ *node, key wire.Key) {
		if g.onChange != nil {
			g.onChange(key)
		}
	})
	return g
}

// place assigns an object to a node by its name, "" for none.
func (g *drivenGraph) place(key wire.Key, name string) {
	if _, known := g.nodes[name]; !known {
		g.nodes[name] = &node{name}
	}
	g.Place(key, g.nodes[name])
}

// needed returns what a node needs.
func (g *drivenGraph) needed(name string) map[wire.Key]bool {
	needed := map[wire.Key]bool{}
	if n := g.nodes[name]; n != nil {
		for key := range g.Objects(n) {
			needed[key] = g.Needs(n, key)
		}
	}
	return needed
}

// The graph maintains, step by step, the sets that a walk over all references would find.
func TestGraph_AgreesWithWalk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := newDrivenGraph()
		if rapid.Bool().Draw(t, "same hash") {
			graph.HashAllAlike(g.Graph)
		}
		home := map[wire.Key]string{}
		layer := func(i int) []wire.Key { // references go from a layer to the next
			var keys []wire.Key
			for n := range 4 {
				keys = append(keys, keyOf(fmt.Sprintf("layer%d", i), "n", fmt.Sprint(n)))
			}
			return keys
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			at := rapid.IntRange(0, 2).Draw(t, "layer")
			k := rapid.SampledFrom(layer(at)).Draw(t, "key")
			if at == 0 && rapid.Bool().Draw(t, "place") {
				home[k] = rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "home")
				g.place(k, home[k])
			} else {
				g.refs[k] = rapid.SliceOfNDistinct(rapid.SampledFrom(layer(at+1)), 0, 3, rapid.ID[wire.Key]).Draw(t, "refs")
				g.Refresh(k)
			}
			all := map[wire.Key]bool{}
			for _, name := range []string{"a", "b"} {
				want := walkReferences(g.refs, home, name)
				for k := range want {
					all[k] = true
				}
				for k := range want {
					if !g.Has(k) {
						t.Fatalf("%s is needed and not found", k.Human())
					}
				}
				if diff := cmp.Diff(want, g.needed(name)); diff != "" {
					t.Fatalf("needs of %s (-want +got):\n%s", name, diff)
				}
			}
			if g.Len() != len(all) {
				t.Fatalf("graph holds %d objects, %d are needed", g.Len(), len(all))
			}
		}
	})
}

func walkReferences(refs map[wire.Key][]wire.Key, home map[wire.Key]string, name string) map[wire.Key]bool {
	found := map[wire.Key]bool{}
	var visit func(wire.Key)
	visit = func(k wire.Key) {
		found[k] = true
		for _, ref := range refs[k] {
			visit(ref)
		}
	}
	for k, at := range home {
		if at == name {
			visit(k)
		}
	}
	return found
}

// TestGraph_ReportsReferencesFirst: a pod must not reach its node before what it mounts.
func TestGraph_ReportsReferencesFirst(t *testing.T) {
	pod, claim, volume, secret := keyOf("pods", "n", "p"), keyOf("persistentvolumeclaims", "n", "c"), keyOf("persistentvolumes", "", "v"), keyOf("secrets", "n", "s")
	g := newDrivenGraph()
	g.refs[pod], g.refs[claim], g.refs[volume] = []wire.Key{claim, secret}, []wire.Key{volume}, []wire.Key{secret}
	var told []wire.Key
	g.onChange = func(k wire.Key) { told = append(told, k) }
	g.place(pod, "node")
	if diff := cmp.Diff([]wire.Key{secret, volume, claim, pod}, told); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// BenchmarkGraph measures a graph of 100,000 nodes with 10 pods each, where a pod needs two objects of its own and
// three that its namespace shares: the cost of an event must not grow with the number of nodes.
func BenchmarkGraph(b *testing.B) {
	for _, nodes := range []int{1_000, 100_000} {
		b.Run(fmt.Sprint(nodes, "-nodes"), func(b *testing.B) {
			// What pods reference is computed, so that the test's own memory is not counted.
			expand := func(key wire.Key) []wire.Key {
				if key.Resource != "pods" {
					return nil
				}
				return []wire.Key{
					keyOf("configmaps", key.Namespace, "kube-root-ca.crt"), keyOf("serviceaccounts", key.Namespace, "default"), keyOf("secrets", key.Namespace, "pull"),
					keyOf("configmaps", key.Namespace, strings.Clone(key.Name)), keyOf("secrets", key.Namespace, strings.Clone(key.Name)),
				}
			}
			podOf := func(n, p int) wire.Key {
				return keyOf("pods", fmt.Sprint("ns-", n%100), fmt.Sprintf("web-7c9f6bd5d4-%06d-%d", n, p))
			}
			all := make([]*node, nodes)
			for n := range all {
				all[n] = &node{}
			}
			before := heapBytes()
			g := graph.New(expand, func(*node, wire.Key) {})
			for n := range all {
				for p := range 10 {
					g.Place(podOf(n, p), all[n])
				}
			}
			size := g.Len()
			used := heapBytes() - before
			i := 0
			for b.Loop() {
				n := i % nodes
				pod := podOf(n, i%10)
				g.Place(pod, nil)
				g.Place(pod, all[n])
				i++
			}
			b.ReportMetric(float64(used)/float64(nodes)/10, "bytes/pod")
			b.ReportMetric(float64(size), "objects")
			runtime.KeepAlive(g)
		})
	}
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
