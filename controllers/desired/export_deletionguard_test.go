package desired

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/frond-edge/frond/api/wire"
)

// Guarded is an Engine with one node, which never starts: a test says what Kubernetes and the stream hold, and has it judged.
type Guarded struct {
	*Engine
	site *site
	// Told are the words about what is held, Asked how often all of the node was asked for at once, Later when it will be.
	Told  []*wire.Hold
	Asked int
	Later []time.Duration
}

// asked is a queue that only remembers.
type asked struct {
	workqueue.TypedRateLimitingInterface[item]
	g *Guarded
}

func (a asked) Add(it item) {
	if it == (item{node: a.g.site.name}) {
		a.g.Asked++
	}
}

func (a asked) AddAfter(it item, d time.Duration) {
	if it.node == a.g.site.name {
		a.g.Later = append(a.g.Later, d)
	}
}

// NewGuarded makes a Guarded whose node has a Node object with annotations.
func NewGuarded(cfg Config, annotations map[string]string) *Guarded {
	g := &Guarded{site: newSite("a", time.Now())}
	cfg.OnHold = func(_ string, hold *wire.Hold) { g.Told = append(g.Told, hold) }
	g.Engine = &Engine{
		cfg: cfg.withDefaults(), kinds: map[groupResource]*kind{}, stores: map[*kind]toolscache.Indexer{}, sites: map[string]*site{"a": g.site},
	}
	for _, k := range kinds(false) {
		g.kinds[kindOf(k.key("", ""))] = k
		g.stores[k] = toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{})
	}
	g.graph = newGraph(func(wire.Key) []wire.Key { return nil }, func(*site, wire.Key) {})
	g.queue = asked{g: g}
	g.site.present = true
	g.Node(annotations)
	return g
}

// Node changes the annotations of the Node.
func (g *Guarded) Node(annotations map[string]string) {
	_ = g.store("nodes").Update(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: annotations}}) // the key function knows it
}

// Gone takes the Node away, or only what makes it an edge node's, longer ago than anything is kept for.
func (g *Guarded) Gone(exists bool) {
	g.site.present, g.site.absentSince = false, time.Now().Add(-time.Hour-g.cfg.Grace)
	if !exists {
		_ = g.store("nodes").Delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}) // the same
	}
}

func (g *Guarded) store(resource string) toolscache.Indexer {
	_, store := g.lookup(groupResource{"", resource})
	return store
}

// Exists says that Kubernetes has a pod for the node, Missing that it has it no more.
func (g *Guarded) Exists(pod *corev1.Pod) {
	_ = g.store("pods").Update(pod) // the same
	g.graph.place(wire.Key{Resource: "pods", Namespace: pod.Namespace, Name: pod.Name}, g.site)
}

// Missing undoes Exists.
func (g *Guarded) Missing(pod *corev1.Pod) {
	_ = g.store("pods").Delete(pod) // the same
	g.graph.place(wire.Key{Resource: "pods", Namespace: pod.Namespace, Name: pod.Name}, nil)
}

// Holds says what the stream holds for the node.
func (g *Guarded) Holds(messages ...wire.Message) {
	held := map[wire.Key]wire.Message{}
	for i, m := range messages {
		m.Sequence = uint64(i + 1)
		held[m.Key] = m
	}
	g.site.endLoad(g.site.beginLoad(), held, g.cfg.ClusterEpoch, 1)
	g.site.expect(nil)
}

// Judge judges at a time.
func (g *Guarded) Judge(at time.Time) (held bool, later time.Duration) {
	v := g.judge(g.site, at)
	return v.held, v.later
}

// May asks whether an object may go now, and tells what would be on its tombstone.
func (g *Guarded) May(key wire.Key) (bool, wire.Leaving) {
	held := g.site.held[key]
	return g.may(g.site, key, held), g.site.partingWord(held)
}

// Review looks again after an object has changed.
func (g *Guarded) Review(key wire.Key) { g.review(g.site, key) }

// Waiting is how many tombstones wait, and how many nodes have such, as the metrics say.
func (g *Guarded) Waiting() (tombstones, nodes float64) { return g.countHeld(), g.countHeldNodes() }
