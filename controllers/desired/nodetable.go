package desired

import (
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/desired/dispatch"
	"github.com/frond-edge/frond/controllers/desired/enginemetrics"
	"github.com/frond-edge/frond/controllers/desired/grants"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/needs"
	"github.com/frond-edge/frond/controllers/desired/objectcache"
	"github.com/frond-edge/frond/controllers/desired/payload"
	"github.com/frond-edge/frond/controllers/desired/topology"
	"github.com/frond-edge/frond/controllers/desired/withheld"
	"github.com/frond-edge/frond/controllers/podcache"
)

// nodeTable knows the edge nodes and which objects each of them needs, and enqueues what events of these change. It owns
// the lock of all that. The locks of objects, work, published.State, deletionguard.State and kindsync are taken below it.
type nodeTable struct {
	cfg     *Config
	objects *objectcache.Cache
	owner   Ownership
	log     *zap.Logger
	metrics *enginemetrics.Counters
	work    *dispatch.Queue
	// shares are what nodes are given of the endpoints of Services.
	shares   *topology.Shares
	withheld withheld.Reporter
	// fixed are the kinds that are always in the cache; optional those that the apiserver may lack.
	fixed    map[kinds.ID]*kinds.Spec
	optional map[kinds.ID]kinds.Optional

	mu sync.Mutex
	// Guarded by mu.
	nodes map[string]*nodeState
	needs *needs.Needs[*nodeState]
	// everywhere are the objects that each node gets.
	everywhere map[wire.Key]struct{}
	// static are the objects among them that SetStatic set.
	static map[wire.Key]payload.Payload
	scopes *grants.Book
	// synced is false until the objects of all fixed kinds are in the cache.
	synced bool
}

func newNodeTable(cfg *Config, objects *objectcache.Cache, retain grants.Retainer, owner Ownership, log *zap.Logger) *nodeTable {
	t := &nodeTable{
		cfg: cfg, objects: objects, owner: owner, log: log, fixed: kinds.TableByID(!cfg.NoServices), optional: kinds.OptionalByID(), nodes: map[string]*nodeState{},
		everywhere: map[wire.Key]struct{}{}, static: map[wire.Key]payload.Payload{}, work: dispatch.New(),
		shares: topology.NewShares(objects, cfg.Groups, log),
	}
	t.needs = needs.New(objects, cfg.Protected, t.change, log)
	t.scopes = grants.NewBook(grants.Config{
		Source: cfg.Scopes, ServicesByNeed: cfg.ServicesByNeed, Protected: cfg.Protected, Objects: objects, Retainer: retain, Fixed: t.fixed, Log: log,
		Enqueue: t.enqueueScoped,
	})
	t.metrics = enginemetrics.New(cfg.Metrics)
	t.withheld = withheld.Reporter{Protected: cfg.Protected, Count: t.metrics.Withheld, On: cfg.OnWithheld, Log: log}
	registerGauges(cfg.Metrics, t)
	return t
}

// change enqueues one object at one node after an event, if this replica owns the node. The caller holds mu.
func (t *nodeTable) change(s *nodeState, key wire.Key) { t.work.Change(s.work, key) }

// enqueueScoped enqueues an object, or a marker, of a node's scope. The caller holds mu.
func (t *nodeTable) enqueueScoped(g *grants.Node, key wire.Key, p controllers.Priority) {
	s := t.nodes[g.Name()]
	switch {
	case s == nil:
	case p == controllers.Urgent:
		t.work.Change(s.work, key)
	default:
		t.work.Repair(s.work, key)
	}
}

// lookup returns a node; nil if it is not known.
func (t *nodeTable) lookup(node string) *nodeState {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.nodes[node]
}

// names returns the nodes that a function accepts, sorted.
func (t *nodeTable) names(accept func(*nodeState) bool) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var names []string
	for name, s := range t.nodes {
		if accept(s) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// load asks for another load of what the stream holds for a node.
func (t *nodeTable) load(node string) {
	if s := t.lookup(node); s != nil {
		t.work.Load(s.work, controllers.Background)
	}
}

// addFixed adds the fixed kinds, of which the cache holds all objects now, and the nodes that were admitted before.
func (t *nodeTable) addFixed(synced []objectcache.Kind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.objects.Add(synced...)
	t.synced = true
	for _, s := range t.nodes {
		t.activateNode(s)
	}
}

// ownershipChunk is how many nodes are loaded or released before events are heard in between: about 1 ms.
const ownershipChunk = 256

// takeAllOwnership loads or releases each node after ownership has changed, first those with a recent change.
func (t *nodeTable) takeAllOwnership() {
	var changed []string
	for _, n := range t.work.RecentlyChanged() {
		changed = append(changed, n.Name())
	}
	t.takeSomeOwnership(changed)
	t.work.HastenLoads()
	for names := range slices.Chunk(t.names(func(*nodeState) bool { return true }), ownershipChunk) {
		t.takeSomeOwnership(names)
	}
	t.work.HastenLoads() // of nodes that have changed since
	t.work.Follow()
}

func (t *nodeTable) takeSomeOwnership(names []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range names {
		if s := t.nodes[name]; s != nil {
			t.takeOwnership(s)
		}
	}
}

// refreshScopes implements Engine.RefreshScopes.
func (t *nodeTable) refreshScopes(node string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.nodes[node]
	if s == nil || !s.published.Loaded() {
		return nil // the load refreshes the scopes
	}
	return t.scopes.Refresh(s.grants, false)
}

// takeOwnership loads a node that this replica has come to own, or releases one that it does not own. The caller holds mu.
func (t *nodeTable) takeOwnership(s *nodeState) {
	switch term := t.owner.Term(s.name); {
	case term == 0:
		t.dropNode(s)
	case !s.renewTerm(term):
		t.work.Load(s.work, controllers.Background)
	}
}

// admit implements Engine.AdmitNode.
func (t *nodeTable) admit(node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.nodes[node]
	if s == nil {
		s = t.addNode(node)
	}
	if !s.present && !s.deleted {
		s.absentSince = time.Now()
	}
	if s.admitted {
		return
	}
	s.admitted = true
	if t.synced {
		t.activateNode(s)
		t.takeOwnership(s)
	}
}

// activateNode begins to serve a node that was admitted. The caller holds mu.
func (t *nodeTable) activateNode(s *nodeState) {
	s.present = s.present || t.objects.Has(wire.Key{Resource: "nodes", Name: s.name})
	s.deleted = s.deleted && !s.present
	t.loadExisting(s)
}

func (t *nodeTable) addNode(node string) *nodeState {
	s := newNodeState(node)
	t.nodes[node] = s
	return s
}

// dropNode drops what the stream holds for a node and what the node was granted: another replica serves it. The caller holds mu.
func (t *nodeTable) dropNode(s *nodeState) {
	s.forgetPublished()
	t.work.Release(s.work)
	t.scopes.EndAll(s.grants)
}

// retireNode drops a node that is gone, once the stream holds nothing alive for it. The caller holds mu.
func (t *nodeTable) retireNode(s *nodeState, alive bool) {
	if alive || t.needs.Count(s) > 0 {
		t.work.AddAfter(controllers.Background, dispatch.Item{Node: s.work}, t.cfg.Grace) // check again after the grace period
		return
	}
	t.dropNode(s)
	delete(t.nodes, s.name)
}

// eventHandler uses events as hints only: the cache's state at the time of the read decides. Besides the object itself,
// an event concerns the vertices between it and what references it, before and after the change.
func (t *nodeTable) eventHandler(k *kinds.Spec) toolscache.ResourceEventHandler {
	handle := func(object any, old ...any) {
		if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
			object = last.Obj
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if pod, ok := object.(*podcache.Pod); ok {
			t.refreshObject(k, pod.Namespace(), pod.Name())
			return
		}
		o, ok := object.(client.Object)
		if !ok {
			return
		}
		t.refreshObject(k, o.GetNamespace(), o.GetName())
		for _, was := range old {
			if was, ok := was.(client.Object); ok {
				t.needs.RefreshBetween(k, was)
			}
		}
		t.needs.RefreshBetween(k, o)
		t.compareShares(t.shares.AfterEvent(k, o, append(old, nil)[0]))
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { handle(object) },
		UpdateFunc: func(old, object any) { handle(object, old) },
		DeleteFunc: func(object any) { handle(object) },
	}
}

// compareShares enqueues the objects whose shares may have changed. The caller holds mu.
func (t *nodeTable) compareShares(c topology.Changes) {
	for _, key := range c.Everywhere {
		t.spreadChange(key)
	}
	for node, key := range c.OwnAt() {
		if s := t.nodes[node]; s != nil && s.grants.Covers(key) {
			t.change(s, key)
		}
	}
}

// refreshObject updates the graph and the queue with one object. The caller holds mu.
func (t *nodeTable) refreshObject(k *kinds.Spec, namespace, name string) {
	key := k.Key(namespace, name)
	if !k.Paced || t.work.Pace(key) {
		t.spreadChange(key)
	}
	if k.ScopedOnly {
		return
	}
	o, err := t.objects.Get(key)
	if err != nil && !errors.Is(err, objectcache.ErrNotFound) {
		t.log.Error("object not readable", zap.String("object", key.Human()), zap.Error(err))
		return
	}
	if k.Resource == "nodes" {
		node, _ := o.(*corev1.Node)
		t.refreshNode(name, node)
	}
	if k.Everywhere || key == kinds.APIService() {
		t.setEverywhere(key, err == nil)
	}
	if k.Everywhere {
		return
	}
	if k.NodeOf != nil {
		var home *nodeState
		if err == nil {
			home = t.nodes[k.NodeOf(o)] // nil if the object's node is not an edge node
		}
		t.needs.Place(key, home)
	}
	t.needs.Refresh(key)
	for s := range t.needs.Nodes(key) {
		t.change(s, key)
	}
}

// refreshNode records whether a Node makes its name an edge node. node is nil if there is none. The caller holds mu.
func (t *nodeTable) refreshNode(name string, node *corev1.Node) {
	edge := false
	if node != nil {
		_, edge = node.Labels[names.LabelEdge]
	}
	s := t.nodes[name]
	switch {
	case s == nil && !edge:
		return
	case s == nil:
		s = t.addNode(name)
	}
	present := edge || node != nil && s.admitted
	if s.present == present {
		return
	}
	s.present, s.absentSince, s.deleted = present, time.Now(), !present
	if !present {
		s.admitted = false // the node has to authenticate again
		t.work.AddAfter(controllers.Background, dispatch.Item{Node: s.work}, t.cfg.Grace)
		return
	}
	if t.owner.Term(name) != 0 {
		t.work.Load(s.work, controllers.Urgent) // also for a node that returns after its grace period
	}
	t.loadExisting(s)
}

// setEverywhere records whether an object that each node gets exists. The caller holds mu.
func (t *nodeTable) setEverywhere(key wire.Key, exists bool) {
	if exists && !t.cfg.Protected.Covers(key) {
		t.everywhere[key] = struct{}{}
	} else {
		delete(t.everywhere, key)
	}
}

// spreadChange enqueues an object, after an event, at each node that has it by a scope or because each node has it. The caller
// holds mu.
func (t *nodeTable) spreadChange(key wire.Key) {
	t.scopes.EnqueueScoped(key)
	k := t.fixed[kinds.Of(key)]
	if !kinds.IsStatic(key) && key != kinds.APIService() && (k == nil || !k.Everywhere) {
		return
	}
	for _, s := range t.nodes {
		if s.published.Loaded() { // a change of all nodes makes no load urgent: nothing would be
			t.change(s, key)
		}
	}
}

// loadExisting adds the objects to the graph that belong to a node and were cached before the node was known. The caller holds mu.
func (t *nodeTable) loadExisting(s *nodeState) {
	for _, k := range t.objects.Kinds() {
		t.needs.PlaceOfNode(k, s.name, s)
	}
}
