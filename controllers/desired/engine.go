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
	cfg       Config
	cache     cache.Cache
	publisher Publisher
	owner     Ownership
	log       *zap.Logger
	metrics   *metrics
	kinds     map[groupResource]*kind
	needing   []groupResource // those of them whose objects say what else a node needs
	encoded   *encodings
	ready     chan struct{}
	followed  followed
	// wake has room for one word to runFollowers, which covers all before it is taken.
	wake chan struct{}
	// stores are the informers' own, complete since before the first read; they lock themselves.
	stores map[*kind]toolscache.Indexer

	mu sync.Mutex
	// Guarded by mu.
	sites map[string]*site
	graph *graph
	// everywhere are the objects that each node gets.
	everywhere map[wire.Key]struct{}
	// provided are those of them that Provide gave.
	provided map[wire.Key]payload
	// audiences are the sites with scopes, followers the kinds that only these want.
	audiences audiences
	followers map[groupResource]*follower
	// optional are the kinds that the apiserver may lack; optionalChanged is closed and replaced when what is known of one changes.
	optional        map[groupResource]*optionalKind
	optionalChanged chan struct{}
	// selections are those of trust bundles that pods of nodes make, by signer.
	selections map[string]map[wire.Key]struct{}
	// fills counts how often a scope was filled.
	fills uint64
	// away paces what waits until this replica is heard of again; it locks itself.
	away workqueue.TypedRateLimiter[item]
	// queue is nil before Start.
	queue controllers.Queue[item]
}

// item is one piece of work: an object at a node, or with the zero Key the reading of what the stream holds for it.
// The queue never gives one item to two workers, which keeps the order of each object at each node.
type item struct {
	node string
	key  wire.Key
}

// New makes an Engine over a cache made with CacheOptions. It starts nothing.
func New(cfg Config, objects cache.Cache, publisher Publisher, owner Ownership, log *zap.Logger) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("desired: %w", err)
	}
	e := &Engine{
		cfg: cfg.withDefaults(), cache: objects, publisher: publisher, owner: owner, log: log,
		kinds: map[groupResource]*kind{}, stores: map[*kind]toolscache.Indexer{}, encoded: newEncodings(encodedLimit), ready: make(chan struct{}),
		sites: map[string]*site{}, everywhere: map[wire.Key]struct{}{}, provided: map[wire.Key]payload{},
		optional: optionalKinds(), optionalChanged: make(chan struct{}), selections: map[string]map[wire.Key]struct{}{},
		audiences: audiences{}, followers: map[groupResource]*follower{}, wake: make(chan struct{}, 1),
		away:     workqueue.NewTypedItemExponentialFailureRateLimiter[item](retryFirst, awayMost),
		followed: followed{kinds: map[groupResource]*kind{}, stores: map[groupResource]toolscache.Indexer{}},
	}
	for _, k := range kinds(!cfg.NoServices) {
		id := kindOf(k.key("", ""))
		e.kinds[id] = k
		if k.refs != nil {
			e.needing = append(e.needing, id)
		}
	}
	e.graph = newGraph(e.expand, e.enqueue)
	e.metrics = newMetrics(cfg.Metrics, counts{
		nodes: e.countLoaded, queue: e.countQueued, heldNodes: e.countHeldNodes, held: e.countHeld,
		filling: e.countScopes(false), complete: e.countScopes(true), followed: e.countFollowed,
	})
	return e, nil
}

// NeedLeaderElection says no: each replica serves the nodes that it owns.
func (*Engine) NeedLeaderElection() bool { return false }

// Ready is closed when the engine has seen every object once and has begun to publish.
func (e *Engine) Ready() <-chan struct{} { return e.ready }

// Start follows the objects and publishes until ctx ends. The cache must be started by the caller.
func (e *Engine) Start(ctx context.Context) error {
	queue := controllers.NewQueue[item](retryFirst, retryMost)
	defer queue.ShutDown()
	e.mu.Lock()
	e.queue = queue
	e.mu.Unlock()

	stop, err := e.follow(ctx)
	defer stop()
	if err != nil {
		return controllers.Ended(ctx, err)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.runFollowers(gctx) })
	g.Go(func() error { return e.runProbes(gctx) })
	e.awaitOptional(ctx)
	close(e.ready)

	g.Go(func() error {
		e.watchOwnership(gctx)
		return nil
	})
	g.Go(func() error {
		e.compare(gctx)
		return nil
	})
	controllers.Work(gctx, queue, e.cfg.Workers, func(ctx context.Context, it item) error { return e.work(ctx, queue, it) })
	return controllers.Ended(ctx, g.Wait())
}

const (
	// A lost race is decided after one more round trip; a stream without a leader needs 4 to 9 s to elect one.
	retryFirst = 20 * time.Millisecond
	retryMost  = 5 * time.Second
	// awayMost bounds the pause of what waits for the members alone: nobody is asked meanwhile, and an election that took seconds
	// should not be felt for seconds more.
	awayMost = time.Second
)

// follow subscribes to all kinds and returns when each handler has seen every object there is: before that, absence
// proves nothing. The returned function ends the subscriptions and is never nil.
func (e *Engine) follow(ctx context.Context) (stop func(), err error) {
	var undo []func()
	stop = func() {
		for _, f := range undo {
			f()
		}
	}
	informers := map[*kind]toolscache.SharedIndexInformer{}
	var stored, handled []toolscache.InformerSynced
	for _, k := range e.kinds {
		if informers[k], err = e.informer(ctx, k); err != nil {
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
	for _, s := range e.sites {
		e.recognize(s) // those that Serve named before
	}
	e.mu.Unlock()
	for k, informer := range informers {
		registration, err := informer.AddEventHandlerWithResyncPeriod(e.handler(k), 0)
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

// informer returns a kind's informer, with an index by node where objects have one.
func (e *Engine) informer(ctx context.Context, k *kind) (toolscache.SharedIndexInformer, error) {
	found, err := e.cache.GetInformer(ctx, k.object(), cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("informer: %w", err)
	}
	informer, ok := found.(toolscache.SharedIndexInformer)
	if !ok {
		return nil, fmt.Errorf("informer is a %T: the cache must not be split by namespaces", found)
	}
	return informer, index(informer, k)
}

// homeIndex is the name of the cache's index of objects by the node they belong to.
const homeIndex = "frond.io/home"

// handler takes events as hints only: what counts is the cache's state when it is read.
func (e *Engine) handler(k *kind) toolscache.ResourceEventHandler {
	handle := func(object any) {
		if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
			object = last.Obj
		}
		if o, ok := object.(client.Object); ok {
			e.refresh(k, o.GetNamespace(), o.GetName())
		}
	}
	if k.signer != nil {
		return e.bundleHandler(k, handle)
	}
	if k.binds != nil {
		return toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { handle(object); e.rebind(k, object) },
			UpdateFunc: func(old, object any) { handle(object); e.rebind(k, old, object) },
			DeleteFunc: func(object any) { handle(object); e.rebind(k, object) },
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    handle,
		UpdateFunc: func(_, object any) { handle(object) },
		DeleteFunc: handle,
	}
}

// watchOwnership sees to it that what the stream holds is known for each owned node and for no other.
func (e *Engine) watchOwnership(ctx context.Context) {
	for {
		changed := e.owner.Changed()
		e.mu.Lock()
		for _, s := range e.sites {
			e.adopt(s)
		}
		e.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// adopt loads a node that became ours, or releases one that did not. The caller holds mu.
func (e *Engine) adopt(s *site) {
	switch term := e.owner.Term(s.name); {
	case term == 0:
		e.drop(s)
	case !s.renew(term):
		e.add(item{node: s.name})
	}
}

// add puts work into the queue. The caller holds mu.
func (e *Engine) add(it item) {
	if e.queue != nil {
		e.queue.Add(it)
	}
}

// enqueue asks for one object at one node, if the node is ours. The caller holds mu.
func (e *Engine) enqueue(s *site, key wire.Key) {
	if s.loaded() && !isVirtual(key) {
		e.add(item{node: s.name, key: key})
	}
}

// Serve asks for a node that has proved itself to the cloud, whether it has a Node object or not. Call it at each attach
// and at each heartbeat, on any replica; it does not block.
func (e *Engine) Serve(node string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sites[node]
	if s == nil {
		s = e.open(node)
	}
	if !s.present && !s.deleted {
		s.absentSince = time.Now()
	}
	if s.admitted {
		return
	}
	s.admitted = true
	if e.queue != nil && len(e.stores) > 0 {
		e.recognize(s)
		e.adopt(s)
	}
}

// recognize takes up a node that was admitted by Serve. The caller holds mu.
func (e *Engine) recognize(s *site) {
	_, err := e.read(wire.Key{Resource: "nodes", Name: s.name})
	s.present = s.present || err == nil
	s.deleted = s.deleted && !s.present
	e.gather(s)
}

// Acked tells the engine what a node has on disk. The cursor must belong to the stream's present life
// (wire.Cursor.StreamEpoch). It does not block.
func (e *Engine) Acked(node string, sequence uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sites[node]
	if s == nil {
		return
	}
	for _, key := range s.ack(sequence, time.Now().Add(-e.cfg.TombstoneAge)) {
		e.add(item{node: node, key: key})
	}
}

// Reload compares everything again with what the stream holds, for the named nodes or for all: after the stream was
// lost or restored, or when an audit found a difference.
func (e *Engine) Reload(nodes ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(nodes) == 0 {
		for node := range e.sites {
			e.add(item{node: node})
		}
	}
	for _, node := range nodes {
		e.add(item{node: node})
	}
}

func (e *Engine) countLoaded() float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, s := range e.sites {
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
