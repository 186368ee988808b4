package desired

import (
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
)

var (
	PodRefs     = podRefs
	AccountRefs = accountRefs
	ClaimRefs   = claimRefs
	VolumeRefs  = volumeRefs
	Leaving     = leaving
	RunsAs      = runsAs
)

// GuardReason judges a node with so many missing, foreign missing, recently gone and live pods.
func GuardReason(g Guard, missing, foreign, recent, live int) wire.HoldReason {
	l := losses{missing: make([]lost, missing), recent: recent, live: live}
	for range foreign {
		l.missing = append(l.missing, lost{foreign: true})
	}
	return g.reason(l)
}

// Digest returns what summarize makes of an object, and the JSON that would be sent.
func Digest(o client.Object) (digest string, object []byte, err error) {
	p, err := summarize(o.DeepCopyObject().(client.Object), false)
	if err == nil {
		err = p.encode()
	}
	return p.digest, p.object, err
}

// Decide runs decide on plain values.
func Decide(wantUID, wantDigest string, sequence uint64, deleted bool, uid, digest string, keep bool, acked uint64) string {
	in := input{held: record{sequence: sequence, deleted: deleted, uid: uid, digest: digest}, keep: keep, acked: acked, ripe: true}
	if wantUID != "" {
		in.want = &payload{uid: wantUID, digest: wantDigest}
	}
	return map[action]string{nothing: "nothing", publish: "publish", tombstone: "tombstone", purge: "purge"}[decide(in)]
}

// Graph drives a graph over a map of references.
type Graph struct {
	graph *graph
	sites map[string]*site
	Refs  map[wire.Key][]wire.Key
	// Changes counts what the graph told, and Told is called with it unless it is nil.
	Changes int
	Told    func(wire.Key)
}

func NewGraph() *Graph {
	g := &Graph{sites: map[string]*site{}, Refs: map[wire.Key][]wire.Key{}}
	g.graph = newGraph(func(k wire.Key) []wire.Key { return g.Refs[k] }, func(_ *site, key wire.Key) {
		g.Changes++
		if g.Told != nil {
			g.Told(key)
		}
	})
	return g
}

func (g *Graph) Place(key wire.Key, node string) {
	if node == "" {
		g.graph.place(key, nil)
		return
	}
	if g.sites[node] == nil {
		g.sites[node] = &site{name: node, wants: map[*vertex]struct{}{}}
	}
	g.graph.place(key, g.sites[node])
}

func (g *Graph) Refresh(key wire.Key) { g.graph.refresh(key) }

func (g *Graph) Wants(node string) map[wire.Key]bool {
	wants := map[wire.Key]bool{}
	if s := g.sites[node]; s != nil {
		for v := range s.wants {
			wants[v.key] = true
		}
	}
	return wants
}

func (g *Graph) Size() int { return len(slices.Collect(maps.Keys(g.graph.vertices))) }

// Audience is an Engine with so many nodes that have scopes on one kind each, and returns what an event of an object costs.
func Audience(nodes int, scope func(node int) wire.Scope) (event func(wire.Key)) {
	e := &Engine{audiences: audiences{}}
	for n := range nodes {
		s := newSite("", time.Now())
		s.held = map[wire.Key]record{}
		e.audiences.add(idOf(scope(n)), s)
	}
	return func(key wire.Key) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.tell(key)
	}
}

// Holding is an Engine that believes the stream to hold these messages for a node.
func Holding(node string, held map[wire.Key]wire.Message) *Engine {
	s := newSite(node, time.Now())
	s.endLoad(s.beginLoad(), held, "", 0)
	s.expect(nil)
	return &Engine{sites: map[string]*site{node: s}}
}
