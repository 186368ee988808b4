package desired

import (
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
)

var (
	PodDeletionReason = podDeletionReason
	RunsAs            = runsAs
)

// GuardReason evaluates a node with these numbers of missing, foreign missing, recently gone and live pods.
func GuardReason(g Guard, missing, foreign, recent, live int) wire.HoldReason {
	l := podLosses{missing: make([]lostPod, missing), recent: recent, live: live}
	for range foreign {
		l.missing = append(l.missing, lostPod{foreignEpoch: true})
	}
	return g.holdReason(l)
}

// Digest returns the digest that makePayload makes of an object, and the JSON that would be sent.
func Digest(o client.Object) (digest string, object []byte, err error) {
	p, err := makePayload(o.DeepCopyObject().(client.Object), false)
	if err == nil {
		err = p.encode()
	}
	return p.digest, p.object, err
}

// Decide runs decide on plain values.
func Decide(wantUID, wantDigest string, sequence uint64, deleted bool, uid, digest string, keep bool, acked uint64) string {
	in := decisionInput{published: streamRecord{sequence: sequence, deleted: deleted, uid: uid, digest: digest}, retain: keep, ackedSequence: acked, purgeable: true}
	if wantUID != "" {
		in.want = &payload{uid: wantUID, digest: wantDigest}
	}
	return map[streamAction]string{noAction: "nothing", publishAction: "publish", tombstoneAction: "tombstone", purgeAction: "purge"}[decide(in)]
}

// Graph drives a graph over a map of references.
type Graph struct {
	graph *graph
	nodes map[string]*nodeState
	Refs  map[wire.Key][]wire.Key
	// Changes counts the graph's notifications; OnChange is called for each of them unless it is nil.
	Changes  int
	OnChange func(wire.Key)
}

func NewGraph() *Graph {
	g := &Graph{nodes: map[string]*nodeState{}, Refs: map[wire.Key][]wire.Key{}}
	g.graph = newGraph(func(k wire.Key) []wire.Key { return g.Refs[k] }, func(_ *nodeState, key wire.Key) {
		g.Changes++
		if g.OnChange != nil {
			g.OnChange(key)
		}
	})
	return g
}

func (g *Graph) Place(key wire.Key, node string) {
	if node == "" {
		g.graph.placeObject(key, nil)
		return
	}
	if g.nodes[node] == nil {
		g.nodes[node] = &nodeState{name: node, wants: map[*vertex]struct{}{}}
	}
	g.graph.placeObject(key, g.nodes[node])
}

func (g *Graph) Refresh(key wire.Key) { g.graph.refreshReferences(key) }

func (g *Graph) Wants(node string) map[wire.Key]bool {
	wants := map[wire.Key]bool{}
	if s := g.nodes[node]; s != nil {
		for v := range s.wants {
			wants[v.key] = true
		}
	}
	return wants
}

func (g *Graph) Size() int { return len(slices.Collect(maps.Keys(g.graph.vertices))) }

// NewScopedEngine creates an Engine with that many nodes that have scopes on one kind each, and returns a function that
// processes an event of an object.
func NewScopedEngine(nodes int, scope func(node int) wire.Scope) (event func(wire.Key)) {
	e := &Engine{subscribers: scopeSubscribers{}}
	for n := range nodes {
		s := newNodeState("", time.Now())
		s.published = map[wire.Key]streamRecord{}
		e.subscribers.add(scopeIDOf(scope(n)), s)
	}
	return func(key wire.Key) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.enqueueScoped(key)
	}
}

// NewPublishedEngine creates an Engine whose record of the stream has these messages for a node.
func NewPublishedEngine(node string, held map[wire.Key]wire.Message) *Engine {
	s := newNodeState(node, time.Now())
	s.endLoad(s.beginLoad(), held, "", 0)
	s.setPending(nil)
	return &Engine{nodes: map[string]*nodeState{node: s}}
}
