package desired

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/desired/deletionguard"
	"github.com/frond-edge/frond/controllers/desired/dispatch"
	"github.com/frond-edge/frond/controllers/desired/kindsync"
	"github.com/frond-edge/frond/controllers/desired/objectcache"
	"github.com/frond-edge/frond/controllers/desired/source"
	"github.com/frond-edge/frond/controllers/desired/streamaudit"
)

// Engine publishes the desired state of the nodes that this replica owns. It is a Runnable of a controller-runtime
// manager and needs no leader election.
type Engine struct {
	cfg        *Config
	cache      cache.Cache
	objects    *objectcache.Cache
	nodes      *nodeTable
	reconciler *reconciler
	informers  *kindsync.Informers
	prober     *kindsync.Prober
	owner      Ownership
	log        *zap.Logger
	ready      chan struct{}
}

const (
	// After a conflict the decision is repeated after one more round trip; a stream without a leader needs 4 to 9 s to elect one.
	retryBase = 20 * time.Millisecond
	retryMax  = 5 * time.Second
	// waitMax bounds the retry delay of an item that only waits for a valid lease. The wait sends no request, and an
	// election that took seconds should not delay work for seconds more.
	waitMax = time.Second
)

// New creates an Engine over a cache, whose pods may be packed. It starts nothing.
func New(config Config, objects cache.Cache, publisher Publisher, owner Ownership, log *zap.Logger) (*Engine, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("desired: %w", err)
	}
	cfg := config.withDefaults()
	e := &Engine{cfg: &cfg, cache: objects, objects: objectcache.New(), owner: owner, log: log, ready: make(chan struct{})}
	e.informers, e.prober = kindsync.New(objects, cfg.Probe, cfg.ProbeEvery, log)
	e.nodes = newNodeTable(e.cfg, e.objects, e.informers, owner, log)
	e.reconciler = &reconciler{
		cfg: e.cfg, nodes: decisions{e.nodes}, objects: e.objects, deletions: newDeletions(e.cfg, e.nodes), publisher: publisher, owner: owner,
		metrics: e.nodes.metrics, log: log, source: source.New(e.objects, e.nodes.fixed, e.nodes.shares),
		waitBackoff: workqueue.NewTypedItemExponentialFailureRateLimiter[dispatch.Item](retryBase, waitMax),
	}
	return e, nil
}

func newDeletions(cfg *Config, nodes *nodeTable) deletions {
	return deletions{nodes: nodes, work: nodes.work, policy: deletionguard.Policy{Guard: cfg.Guard, Restore: cfg.Restore, VerifiedSince: cfg.VerifiedSince}}
}

// NeedLeaderElection returns false: each replica serves the nodes that it owns.
func (*Engine) NeedLeaderElection() bool { return false }

// Ready returns a channel that is closed when the engine has seen every object once and has begun to publish.
func (e *Engine) Ready() <-chan struct{} { return e.ready }

// Start follows the objects and publishes until ctx ends. The caller must start the cache.
func (e *Engine) Start(ctx context.Context) error {
	shut := e.nodes.work.Open(retryBase, retryMax)
	defer shut()

	stop, err := kindsync.StartFixed(ctx, e.cache, e.nodes.fixed, e.nodes.addFixed, e.nodes.eventHandler)
	defer stop()
	if err != nil {
		return controllers.IgnoreCanceled(ctx, err)
	}
	g, gctx := errgroup.WithContext(ctx)
	follower := kindFollower{e.nodes, e.prober.Delivered}
	g.Go(func() error { return e.informers.Run(gctx, follower) })
	g.Go(func() error { return e.prober.Run(gctx, follower) })
	e.prober.Await(ctx)
	changed := e.owner.Changed()
	e.nodes.takeAllOwnership()
	close(e.ready)

	g.Go(func() error {
		e.watchOwnership(gctx, changed)
		return nil
	})
	g.Go(func() error {
		streamaudit.Audit{Nodes: auditedNodes{e.nodes}, Stream: e.reconciler.publisher, Every: e.cfg.CompareEvery, Log: e.log}.Run(gctx)
		return nil
	})
	e.nodes.work.Run(gctx, e.cfg.Workers, e.reconciler)
	return controllers.IgnoreCanceled(ctx, g.Wait())
}

// watchOwnership keeps the stream's content loaded for each owned node, and for no other. changed is closed at the next change of ownership.
func (e *Engine) watchOwnership(ctx context.Context, changed <-chan struct{}) {
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		changed = e.owner.Changed()
		e.nodes.takeAllOwnership()
	}
}

// AdmitNode requests service for a node that has authenticated to the cloud, whether or not it has a Node object. Call
// it at each attach and at each heartbeat, on any replica; it does not block.
func (e *Engine) AdmitNode(node string) { e.nodes.admit(node) }

// RecordAck records what a node has on disk. The cursor must belong to the stream's present incarnation
// (wire.Cursor.StreamEpoch). It does not block.
func (e *Engine) RecordAck(node string, sequence uint64) {
	if s := e.nodes.lookup(node); s != nil {
		e.nodes.work.Repair(s.work, s.published.Acked(sequence, time.Now().Add(-e.cfg.TombstoneAge))...)
	}
}

// Removed reports whether a node is known to have an object no more (published.State.Removed). It is false for a node that another replica serves.
func (e *Engine) Removed(node string, key wire.Key) bool {
	s := e.nodes.lookup(node)
	return s != nil && s.published.Removed(key)
}

// Resync compares all objects again with what the stream holds, for the named nodes or for all: after the stream was
// lost or restored, or when an audit found a difference.
func (e *Engine) Resync(nodes ...string) {
	if len(nodes) == 0 {
		nodes = e.nodes.names(func(s *nodeState) bool { return s.published.Loaded() || e.nodes.work.AwaitsLoad(s.work) })
	}
	for _, node := range nodes {
		e.nodes.load(node)
	}
}

// RefreshScopes evaluates a node's granted scopes again after they have changed. It does not block.
func (e *Engine) RefreshScopes(node string) {
	if err := e.nodes.refreshScopes(node); err != nil {
		e.log.Warn("scopes not known", zap.String("node", node), zap.Error(err))
	}
}

// GroupsChanged compares again what nodes are given of Services' endpoints, after Config.Groups has changed. It does not block.
func (e *Engine) GroupsChanged() {
	e.nodes.mu.Lock()
	defer e.nodes.mu.Unlock()
	e.nodes.compareShares(e.nodes.shares.GroupsChanged())
}

// CutEndpoints cuts EndpointSlices or Endpoints that a program at a node has requested of the apiserver, as those that are published.
func (e *Engine) CutEndpoints(node string, o *unstructured.Unstructured) (client.Object, error) {
	return e.nodes.shares.CutAnswer(node, o)
}

// SetStatic gives every node an object that is not a Kubernetes object: the keys of tokens, and the list of delivered
// kinds. The latest value wins. Until it is set once in this process, what the stream holds of it stays. It does not block.
func (e *Engine) SetStatic(key wire.Key, object []byte) {
	e.nodes.mu.Lock()
	defer e.nodes.mu.Unlock()
	e.nodes.setStatic(key, object)
}

// Progress returns how far behind a node is that has everything up to a stream sequence on disk: how many of the changes that the stream holds for
// it have not arrived, and when the first of them was made. known is false unless this replica serves the node and has read what the stream holds.
// It reads the record of each object of the node, and does not block.
func (e *Engine) Progress(node string, sequence uint64) (behind int, oldest time.Time, known bool) {
	s := e.nodes.lookup(node)
	if s == nil {
		return 0, time.Time{}, false
	}
	return s.published.Progress(sequence)
}

// Inventory sums up what the stream holds for a node, without the objects in except, and returns the sequence up to
// which the sum reaches. A node whose cursor has reached that sequence holds the same objects. known is false while
// this replica does not know what the stream holds, or the first publication is in progress. It does not block.
func (e *Engine) Inventory(node string, except []wire.Key) (census wire.Inventory, upTo uint64, known bool) {
	s := e.nodes.lookup(node)
	if s == nil {
		return census, 0, false
	}
	return s.published.Inventory(except)
}

// RunsServiceAccount reports whether a pod that has not ended runs on a node with a service account. It is false for a
// protected namespace, as no node is given such a pod. The engine must be Ready.
func (e *Engine) RunsServiceAccount(node, namespace, account string) bool {
	if e.cfg.Protected.Contains(namespace) {
		return false
	}
	runs, err := e.objects.RunsServiceAccount(node, namespace, account)
	if err != nil {
		e.log.Error("pods of node not listed", zap.String("node", node), zap.Error(err))
	}
	return runs
}

// HasNode reports whether a node has a Node object. The engine must be Ready.
func (e *Engine) HasNode(node string) bool {
	return e.objects.Has(wire.Key{Resource: "nodes", Name: node})
}
