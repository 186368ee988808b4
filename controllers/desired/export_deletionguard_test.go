package desired

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/frond-edge/frond/api/wire"
)

// GuardHarness is an Engine with one node that never starts: a test sets what Kubernetes and the stream hold, and
// evaluates the guard.
type GuardHarness struct {
	*Engine
	node *nodeState
	// Reports are the reported holds, Resyncs the number of immediate reloads of the node, Delays the delayed ones.
	Reports []*wire.Hold
	Resyncs int
	Delays  []time.Duration
}

// recordingQueue is a queue that only records the reloads of the node.
type recordingQueue struct {
	workqueue.TypedRateLimitingInterface[workItem]
	harness *GuardHarness
}

func (a recordingQueue) Add(it workItem) {
	if it == (workItem{node: a.harness.node.name}) {
		a.harness.Resyncs++
	}
}

func (a recordingQueue) AddAfter(it workItem, d time.Duration) {
	if it.node == a.harness.node.name {
		a.harness.Delays = append(a.harness.Delays, d)
	}
}

// NewGuardHarness creates a GuardHarness whose node has a Node object with annotations.
func NewGuardHarness(cfg Config, annotations map[string]string) *GuardHarness {
	g := &GuardHarness{node: newNodeState("a", time.Now())}
	cfg.OnHold = func(_ string, hold *wire.Hold) { g.Reports = append(g.Reports, hold) }
	g.Engine = &Engine{
		cfg: cfg.withDefaults(), kinds: map[groupResource]*kindSpec{}, stores: map[*kindSpec]toolscache.Indexer{}, nodes: map[string]*nodeState{"a": g.node},
	}
	for _, k := range kindTable(false) {
		g.kinds[kindOf(k.keyOf("", ""))] = k
		g.stores[k] = toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{})
	}
	g.graph = newGraph(func(wire.Key) []wire.Key { return nil }, func(*nodeState, wire.Key) {})
	g.queue = recordingQueue{harness: g}
	g.node.present = true
	g.SetAnnotations(annotations)
	return g
}

// SetAnnotations changes the annotations of the Node.
func (g *GuardHarness) SetAnnotations(annotations map[string]string) {
	_ = g.indexerOf("nodes").Update(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: annotations}}) // the key function knows it
}

// RemoveNode removes the Node, or only its edge label, longer ago than any grace period.
func (g *GuardHarness) RemoveNode(exists bool) {
	g.node.present, g.node.absentSince = false, time.Now().Add(-time.Hour-g.cfg.Grace)
	if !exists {
		_ = g.indexerOf("nodes").Delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}) // the same
	}
}

func (g *GuardHarness) indexerOf(resource string) toolscache.Indexer {
	_, store := g.lookupKind(groupResource{"", resource})
	return store
}

// AddPod adds a pod of the node to what Kubernetes holds.
func (g *GuardHarness) AddPod(pod *corev1.Pod) {
	_ = g.indexerOf("pods").Update(pod) // the same
	g.graph.placeObject(wire.Key{Resource: "pods", Namespace: pod.Namespace, Name: pod.Name}, g.node)
}

// RemovePod undoes AddPod.
func (g *GuardHarness) RemovePod(pod *corev1.Pod) {
	_ = g.indexerOf("pods").Delete(pod) // the same
	g.graph.placeObject(wire.Key{Resource: "pods", Namespace: pod.Namespace, Name: pod.Name}, nil)
}

// SetPublished sets what the stream holds for the node.
func (g *GuardHarness) SetPublished(messages ...wire.Message) {
	held := map[wire.Key]wire.Message{}
	for i, m := range messages {
		m.Sequence = uint64(i + 1)
		held[m.Key] = m
	}
	g.node.endLoad(g.node.beginLoad(), held, g.cfg.ClusterEpoch, 1)
	g.node.setPending(nil)
}

// Evaluate evaluates the guard at a time.
func (g *GuardHarness) Evaluate(at time.Time) (held bool, later time.Duration) {
	v := g.evaluateGuard(g.node, at)
	return v.held, v.retryAfter
}

// DeletionAllowed reports whether an object may be removed now, and the reason that its tombstone would carry.
func (g *GuardHarness) DeletionAllowed(key wire.Key) (bool, wire.DeletionReason) {
	held := g.node.published[key]
	return g.deletionAllowed(g.node, key, held), g.node.deletionReason(held)
}

// Reevaluate evaluates the hold again after an object has changed.
func (g *GuardHarness) Reevaluate(key wire.Key) { g.reevaluateHold(g.node, key) }

// HeldCounts returns the metrics' values: how many tombstones wait, and how many nodes have such.
func (g *GuardHarness) HeldCounts() (tombstones, nodes float64) {
	return g.countHeld(), g.countHeldNodes()
}
