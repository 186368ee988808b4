package desired

import (
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/desired/dispatch"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/objectcache"
)

// GuardHarness is a table with one node, without an engine: a test sets what Kubernetes and the stream hold, and
// evaluates the guard.
type GuardHarness struct {
	deletions
	node *nodeState
	// Reports are the reported holds, Resyncs the number of immediate reloads of the node, Delays the delayed ones.
	Reports []*wire.Hold
	Resyncs int
	Delays  []time.Duration
}

// recordingQueue only records the reloads of the node.
type recordingQueue struct{ harness *GuardHarness }

func (a recordingQueue) Load(n *dispatch.Node, _ controllers.Priority) {
	if n == a.harness.node.work {
		a.harness.Resyncs++
	}
}

func (a recordingQueue) AddAfter(_ controllers.Priority, it dispatch.Item, d time.Duration) {
	if it.Node == a.harness.node.work {
		a.harness.Delays = append(a.harness.Delays, d)
	}
}

// NewGuardHarness creates a GuardHarness whose node has a Node object with annotations.
func NewGuardHarness(cfg Config, annotations map[string]string) *GuardHarness {
	g := &GuardHarness{node: newNodeState("a")}
	cfg.OnHold = func(_ string, hold *wire.Hold) { g.Reports = append(g.Reports, hold) }
	cfg.NoServices = true
	cfg = cfg.withDefaults()
	objects := objectcache.New()
	for _, k := range kinds.Table(false) {
		objects.Add(objectcache.Kind{Spec: k, Store: toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{})})
	}
	g.deletions = newDeletions(&cfg, newNodeTable(&cfg, objects, nil, nil, zap.NewNop()))
	g.nodes.nodes["a"], g.work = g.node, recordingQueue{harness: g}
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
	g.node.present, g.node.absentSince = false, time.Now().Add(-time.Hour-g.nodes.cfg.Grace)
	if !exists {
		_ = g.indexerOf("nodes").Delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}) // the same
	}
}

func (g *GuardHarness) indexerOf(resource string) toolscache.Indexer {
	k, _ := g.nodes.objects.Kind(kinds.ID{Resource: resource})
	return k.Store
}

// AddPod adds a pod of the node to what Kubernetes holds.
func (g *GuardHarness) AddPod(pod *corev1.Pod) {
	_ = g.indexerOf("pods").Update(pod) // the same
	g.nodes.needs.Place(wire.Key{Resource: "pods", Namespace: pod.Namespace, Name: pod.Name}, g.node)
}

// RemovePod undoes AddPod.
func (g *GuardHarness) RemovePod(pod *corev1.Pod) {
	_ = g.indexerOf("pods").Delete(pod) // the same
	g.nodes.needs.Place(wire.Key{Resource: "pods", Namespace: pod.Namespace, Name: pod.Name}, nil)
}

// SetPublished sets what the stream holds for the node.
func (g *GuardHarness) SetPublished(messages ...wire.Message) {
	held := map[wire.Key]wire.Message{}
	for i, m := range messages {
		m.Sequence = uint64(i + 1)
		held[m.Key] = m
	}
	g.node.published.EndLoad(g.node.published.BeginLoad(), held, g.nodes.cfg.ClusterEpoch, 1)
	g.node.published.SetPending(nil)
}

// Evaluate evaluates the guard at a time.
func (g *GuardHarness) Evaluate(at time.Time) (held bool, later time.Duration) {
	v := g.evaluate(g.node, at)
	return v.Held, v.RetryAfter
}

// DeletionAllowed reports whether an object may be removed now, and the reason that its tombstone would carry.
func (g *GuardHarness) DeletionAllowed(key wire.Key) (bool, wire.DeletionReason) {
	view, _ := g.node.published.View(key)
	return g.allowed(g.node, key, view.Record), g.node.guard.DeletionReason(view.Record)
}

// Reevaluate evaluates the hold again after an object has changed.
func (g *GuardHarness) Reevaluate(key wire.Key) { g.reevaluate(g.node, key) }

// HeldCounts returns the metrics' values: how many tombstones wait, and how many nodes have such.
func (g *GuardHarness) HeldCounts() (tombstones, nodes float64) {
	return float64(g.node.guard.Deferred()), float64(boolToInt(g.node.guard.Held()))
}
