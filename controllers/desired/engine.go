package desired

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
)

// Engine publishes the desired state of the nodes that this replica owns. It is a Runnable of a controller-runtime
// manager and needs no leader election.
type Engine struct {
	cfg            Config
	cache          cache.Cache
	publisher      Publisher
	owner          Ownership
	log            *zap.Logger
	metrics        *metrics
	kinds          map[groupResource]*kindSpec
	referringKinds []groupResource // the kinds whose objects reference other objects that a node needs
	encoded        *encodingCache
	ready          chan struct{}
	synced         kindRegistry
	// wake signals runInformers. Its buffer is one: a signal that was not yet received covers all later changes.
	wake chan struct{}
	// stores are the informers' own stores, complete before the first read; they have their own locks.
	stores map[*kindSpec]toolscache.Indexer

	mu sync.Mutex
	// Guarded by mu.
	nodes map[string]*nodeState
	graph *graph
	// everywhere are the objects that each node gets.
	everywhere map[wire.Key]struct{}
	// staticObjects are the objects among them that SetStatic set.
	staticObjects map[wire.Key]payload
	// subscribers are the nodes with scopes; kindInformers are the informers of kinds that only scopes want, and of
	// optional kinds.
	subscribers   scopeSubscribers
	kindInformers map[groupResource]*kindInformer
	// optional are the kinds that the apiserver may lack. optionalChanged is closed and replaced when the state of one changes.
	optional        map[groupResource]*optionalKind
	optionalChanged chan struct{}
	// selections are the trust bundle selections that pods of nodes make, by signer.
	selections map[string]map[wire.Key]struct{}
	// fillCount counts how often a scope was filled.
	fillCount uint64
	// waitBackoff is the backoff of items that wait until this replica's lease is valid again; it has its own lock.
	waitBackoff workqueue.TypedRateLimiter[workItem]
	// queue is nil before Start.
	queue controllers.Queue[workItem]
}

// workItem is one item of the work queue: an object at a node. The zero Key stands for loading what the stream holds
// for the node. The queue never gives one item to two workers, which keeps the order of each object at each node.
type workItem struct {
	node string
	key  wire.Key
}

// New creates an Engine over a cache made with CacheOptions. It starts nothing.
func New(cfg Config, objects cache.Cache, publisher Publisher, owner Ownership, log *zap.Logger) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("desired: %w", err)
	}
	e := &Engine{
		cfg: cfg.withDefaults(), cache: objects, publisher: publisher, owner: owner, log: log,
		kinds: map[groupResource]*kindSpec{}, stores: map[*kindSpec]toolscache.Indexer{}, encoded: newEncodingCache(encodedLimit), ready: make(chan struct{}),
		nodes: map[string]*nodeState{}, everywhere: map[wire.Key]struct{}{}, staticObjects: map[wire.Key]payload{},
		optional: optionalKinds(), optionalChanged: make(chan struct{}), selections: map[string]map[wire.Key]struct{}{},
		subscribers: scopeSubscribers{}, kindInformers: map[groupResource]*kindInformer{}, wake: make(chan struct{}, 1),
		waitBackoff: workqueue.NewTypedItemExponentialFailureRateLimiter[workItem](retryBase, waitMax),
		synced:      kindRegistry{kinds: map[groupResource]*kindSpec{}, stores: map[groupResource]toolscache.Indexer{}},
	}
	for _, k := range kindTable(!cfg.NoServices) {
		id := kindOf(k.keyOf("", ""))
		e.kinds[id] = k
		if k.references != nil {
			e.referringKinds = append(e.referringKinds, id)
		}
	}
	e.graph = newGraph(e.expandReferences, e.enqueueKey)
	e.metrics = newMetrics(cfg.Metrics, gaugeSources{
		nodes: e.countLoaded, queue: e.countQueued, heldNodes: e.countHeldNodes, held: e.countHeld,
		filling: e.countScopes(false), complete: e.countScopes(true), followed: e.countSyncedKinds,
	})
	return e, nil
}

// NeedLeaderElection returns false: each replica serves the nodes that it owns.
func (*Engine) NeedLeaderElection() bool { return false }

// Ready returns a channel that is closed when the engine has seen every object once and has begun to publish.
func (e *Engine) Ready() <-chan struct{} { return e.ready }

// Start follows the objects and publishes until ctx ends. The caller must start the cache.
func (e *Engine) Start(ctx context.Context) error {
	queue := controllers.NewQueue[workItem](retryBase, retryMax)
	defer queue.ShutDown()
	e.mu.Lock()
	e.queue = queue
	e.mu.Unlock()

	stop, err := e.startInformers(ctx)
	defer stop()
	if err != nil {
		return controllers.IgnoreCanceled(ctx, err)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.runInformers(gctx) })
	g.Go(func() error { return e.runProbes(gctx) })
	e.awaitOptional(ctx)
	close(e.ready)

	g.Go(func() error {
		e.watchOwnership(gctx)
		return nil
	})
	g.Go(func() error {
		e.runAudit(gctx)
		return nil
	})
	controllers.ProcessQueue(gctx, queue, e.cfg.Workers, func(ctx context.Context, it workItem) error { return e.processItem(ctx, queue, it) })
	return controllers.IgnoreCanceled(ctx, g.Wait())
}

const (
	// After a conflict the decision is repeated after one more round trip; a stream without a leader needs 4 to 9 s to elect one.
	retryBase = 20 * time.Millisecond
	retryMax  = 5 * time.Second
	// waitMax bounds the retry delay of an item that only waits for a valid lease. The wait sends no request, and an
	// election that took seconds should not delay work for seconds more.
	waitMax = time.Second
)

// startInformers subscribes to all kinds and returns when each handler has seen every existing object: before that,
// absence proves nothing. The returned function ends the subscriptions and is never nil.
func (e *Engine) startInformers(ctx context.Context) (stop func(), err error) {
	var undo []func()
	stop = func() {
		for _, f := range undo {
			f()
		}
	}
	informers := map[*kindSpec]toolscache.SharedIndexInformer{}
	var stored, handled []toolscache.InformerSynced
	for _, k := range e.kinds {
		if informers[k], err = e.informerFor(ctx, k); err != nil {
			return stop, fmt.Errorf("follow %s: %w", k.resource, err)
		}
		stored = append(stored, informers[k].HasSynced)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), stored...) {
		return stop, fmt.Errorf("fill the cache: %w", context.Cause(ctx))
	}
	e.mu.Lock()
	for k, informer := range informers {
		e.stores[k] = informer.GetIndexer()
	}
	for _, s := range e.nodes {
		e.activateNode(s) // nodes that AdmitNode named before
	}
	e.mu.Unlock()
	for k, informer := range informers {
		registration, err := informer.AddEventHandlerWithResyncPeriod(e.eventHandler(k), 0)
		if err != nil {
			return stop, fmt.Errorf("follow %s: %w", k.resource, err)
		}
		undo = append(undo, func() { _ = informer.RemoveEventHandler(registration) })
		handled = append(handled, registration.HasSynced)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), handled...) {
		return stop, fmt.Errorf("follow the objects: %w", context.Cause(ctx))
	}
	return stop, nil
}

// informerFor returns a kind's informer, with an index by node where objects have one.
func (e *Engine) informerFor(ctx context.Context, k *kindSpec) (toolscache.SharedIndexInformer, error) {
	found, err := e.cache.GetInformer(ctx, k.object(), cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("informer: %w", err)
	}
	informer, ok := found.(toolscache.SharedIndexInformer)
	if !ok {
		return nil, fmt.Errorf("informer is a %T: the cache must not be split by namespaces", found)
	}
	return informer, addIndexes(informer, k)
}

// nodeIndex is the name of the cache's index of objects by the node they belong to.
const nodeIndex = "frond.io/home"

// eventHandler uses events as hints only: the cache's state at the time of the read decides.
func (e *Engine) eventHandler(k *kindSpec) toolscache.ResourceEventHandler {
	handle := func(object any) {
		if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
			object = last.Obj
		}
		if o, ok := object.(client.Object); ok {
			e.refreshObject(k, o.GetNamespace(), o.GetName())
		}
	}
	if k.signer != nil {
		return e.bundleHandler(k, handle)
	}
	if k.subjects != nil {
		return toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { handle(object); e.refreshBindings(k, object) },
			UpdateFunc: func(old, object any) { handle(object); e.refreshBindings(k, old, object) },
			DeleteFunc: func(object any) { handle(object); e.refreshBindings(k, object) },
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    handle,
		UpdateFunc: func(_, object any) { handle(object) },
		DeleteFunc: handle,
	}
}

// watchOwnership keeps the stream's content loaded for each owned node, and for no other.
func (e *Engine) watchOwnership(ctx context.Context) {
	for {
		changed := e.owner.Changed()
		e.mu.Lock()
		for _, s := range e.nodes {
			e.takeOwnership(s)
		}
		e.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// takeOwnership loads a node that this replica has come to own, or releases one that it does not own. The caller holds mu.
func (e *Engine) takeOwnership(s *nodeState) {
	switch term := e.owner.Term(s.name); {
	case term == 0:
		e.dropNode(s)
	case !s.renewTerm(term):
		e.addItem(workItem{node: s.name})
	}
}

// addItem adds an item to the queue. The caller holds mu.
func (e *Engine) addItem(it workItem) {
	if e.queue != nil {
		e.queue.Add(it)
	}
}

// enqueueKey enqueues one object at one node, if this replica owns the node. The caller holds mu.
func (e *Engine) enqueueKey(s *nodeState, key wire.Key) {
	if s.loaded() && !isVirtual(key) {
		e.addItem(workItem{node: s.name, key: key})
	}
}

// AdmitNode requests service for a node that has authenticated to the cloud, whether or not it has a Node object. Call
// it at each attach and at each heartbeat, on any replica; it does not block.
func (e *Engine) AdmitNode(node string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.nodes[node]
	if s == nil {
		s = e.addNode(node)
	}
	if !s.present && !s.deleted {
		s.absentSince = time.Now()
	}
	if s.admitted {
		return
	}
	s.admitted = true
	if e.queue != nil && len(e.stores) > 0 {
		e.activateNode(s)
		e.takeOwnership(s)
	}
}

// activateNode begins to serve a node that AdmitNode admitted. The caller holds mu.
func (e *Engine) activateNode(s *nodeState) {
	_, err := e.readCached(wire.Key{Resource: "nodes", Name: s.name})
	s.present = s.present || err == nil
	s.deleted = s.deleted && !s.present
	e.loadExisting(s)
}

// RecordAck records what a node has on disk. The cursor must belong to the stream's present incarnation
// (wire.Cursor.StreamEpoch). It does not block.
func (e *Engine) RecordAck(node string, sequence uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.nodes[node]
	if s == nil {
		return
	}
	for _, key := range s.recordAck(sequence, time.Now().Add(-e.cfg.TombstoneAge)) {
		e.addItem(workItem{node: node, key: key})
	}
}

// Resync compares all objects again with what the stream holds, for the named nodes or for all: after the stream was
// lost or restored, or when an audit found a difference.
func (e *Engine) Resync(nodes ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(nodes) == 0 {
		for node := range e.nodes {
			e.addItem(workItem{node: node})
		}
	}
	for _, node := range nodes {
		e.addItem(workItem{node: node})
	}
}

func (e *Engine) countLoaded() float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, s := range e.nodes {
		if s.loaded() {
			n++
		}
	}
	return float64(n)
}

func (e *Engine) countQueued() float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.queue == nil {
		return 0
	}
	return float64(e.queue.Len())
}
