// Package kindsync keeps kinds in the cache that not every node or every apiserver has: those that only scopes ask for, and
// those that the apiserver may lack.
package kindsync

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/objectcache"
)

// retryPause is the pause after a kind could not be synced. The component that grants scopes has listed the kind before,
// so this is rare.
const retryPause = 5 * time.Second

// Follower is told of a kind's objects. No lock of this package is held during a call.
type Follower interface {
	// KindSynced is called when all objects of a kind are in its store, before any event, and returns the handler of events.
	KindSynced(objectcache.Kind) toolscache.ResourceEventHandler
	// KindFollowed is called after that, when every later event reaches the handler.
	KindFollowed(kinds.ID)
	// KindUnsynced is called when a kind is no longer synced: which of its objects exist is not known any more.
	KindUnsynced(kinds.ID)
	// DeliveredChanged is called when Prober.Delivered has changed.
	DeliveredChanged()
}

// Informers keeps each kind synced that is retained. Its methods may be called concurrently.
type Informers struct {
	cache  cache.Cache
	prober *Prober
	log    *zap.Logger
	// wake signals Run. Its buffer is one: a signal that was not yet received covers all later changes.
	wake     chan struct{}
	optional map[kinds.ID]kinds.Optional

	mu sync.Mutex
	// Guarded by mu.
	informers map[kinds.ID]*informer
	// versions are those in which the apiserver serves optional kinds, whatever version a scope asks for.
	versions map[kinds.ID]string
}

// informer keeps one kind in the cache. Guarded by Informers.mu.
type informer struct {
	kind *kinds.Spec
	// refCount counts the scopes, plus one while the apiserver serves an optional kind.
	refCount int
	running  bool
	// stop ends the present run; nil between two runs.
	stop context.CancelFunc
}

// New creates Informers over a controller-runtime cache, and the Prober of the optional kinds, which asks with probe at an
// interval; without probe it does nothing. It starts nothing.
func New(
	objects cache.Cache, probe func(context.Context, schema.GroupVersionResource) error, every time.Duration, log *zap.Logger,
) (*Informers, *Prober) {
	n := &Informers{
		cache: objects, log: log, wake: make(chan struct{}, 1), optional: map[kinds.ID]kinds.Optional{},
		informers: map[kinds.ID]*informer{}, versions: map[kinds.ID]string{},
	}
	n.prober = &Prober{probe: probe, every: every, informers: n, log: log, kinds: map[kinds.ID]*probedKind{}, changed: make(chan struct{})}
	for _, o := range kinds.OptionalTable() {
		n.optional[o.ID], n.prober.kinds[o.ID] = o, &probedKind{Optional: o}
	}
	return n, n.prober
}

// Retain adds a reference to a kind, and does not block. The latest version that was asked for wins.
func (n *Informers) Retain(id kinds.ID, gvk schema.GroupVersionKind) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.retain(id, gvk)
}

// Release undoes one Retain.
func (n *Informers) Release(id kinds.ID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.release(id)
}

// setServed sets the version in which an optional kind is served, "" for none, and retains the kind while it is served.
func (n *Informers) setServed(o kinds.Optional, version string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.versions[o.ID]
	n.versions[o.ID] = version
	if before != "" {
		n.release(o.ID)
	}
	if version != "" {
		n.retain(o.ID, o.GVK(version))
	}
}

// retain implements Retain. The caller holds mu.
func (n *Informers) retain(id kinds.ID, gvk schema.GroupVersionKind) {
	f := n.informers[id]
	if f == nil {
		f = &informer{}
		n.informers[id] = f
	}
	f.refCount++
	next := n.specOf(id, gvk)
	if f.kind == nil || f.kind.GVK != next.GVK {
		f.kind = next
		if f.stop != nil {
			f.stop()
		}
	}
	n.wakeRun()
}

// release implements Release. The caller holds mu.
func (n *Informers) release(id kinds.ID) {
	f := n.informers[id]
	if f == nil {
		return
	}
	if f.refCount--; f.refCount == 0 && f.stop != nil {
		f.stop()
	}
	n.wakeRun()
}

// specOf returns the description of a kind that is optional, or that only scopes ask for. The caller holds mu.
func (n *Informers) specOf(id kinds.ID, gvk schema.GroupVersionKind) *kinds.Spec {
	o, ok := n.optional[id]
	if !ok {
		return &kinds.Spec{GVK: gvk, Resource: id.Resource, ScopedOnly: true}
	}
	version := gvk.Version
	if served := n.versions[id]; served != "" {
		version = served
	}
	k := o.Spec(version)
	k.GVK.Kind = gvk.Kind
	return k
}

func (n *Informers) wakeRun() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Run keeps the retained kinds synced until ctx ends.
func (n *Informers) Run(ctx context.Context, follower Follower) error {
	var g errgroup.Group
	for {
		n.mu.Lock()
		for id, f := range n.informers {
			switch {
			case f.running:
			case f.refCount == 0:
				delete(n.informers, id)
			default:
				f.running = true
				g.Go(func() error {
					n.runInformer(ctx, follower, id, f)
					return nil
				})
			}
		}
		n.mu.Unlock()
		select {
		case <-ctx.Done():
			return g.Wait()
		case <-n.wake:
		}
	}
}

// runInformer keeps one kind synced until nothing refers to it.
func (n *Informers) runInformer(ctx context.Context, follower Follower, id kinds.ID, f *informer) {
	for {
		n.mu.Lock()
		if f.stop = nil; f.refCount == 0 || ctx.Err() != nil {
			f.running = false
			n.mu.Unlock()
			n.wakeRun()
			return
		}
		k := f.kind
		kctx, stop := context.WithCancel(ctx)
		f.stop = stop
		n.mu.Unlock()
		if err := n.syncKind(kctx, follower, id, k); err != nil && kctx.Err() == nil {
			n.log.Warn("kind not followed, trying again", zap.String("kind", k.GVK.String()), zap.Error(err))
			select {
			case <-kctx.Done():
			case <-time.After(retryPause):
			}
		}
		stop()
	}
}

// syncKind keeps one kind in the cache until ctx ends.
func (n *Informers) syncKind(ctx context.Context, follower Follower, id kinds.ID, k *kinds.Spec) error {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(k.GVK)
	found, err := n.cache.GetInformer(ctx, object, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("informer: %w", err)
	}
	defer func() {
		if err := n.cache.RemoveInformer(context.WithoutCancel(ctx), object); err != nil {
			n.log.Warn("informer not ended", zap.String("kind", k.GVK.String()), zap.Error(err))
		}
	}()
	informer, ok := found.(toolscache.SharedIndexInformer)
	if !ok {
		return fmt.Errorf("informer is a %T", found)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return fmt.Errorf("fill the cache: %w", context.Cause(ctx))
	}
	if err := k.AddIndexes(informer); err != nil {
		return err
	}
	handler := follower.KindSynced(objectcache.Kind{Spec: k, Store: informer.GetIndexer()})
	defer func() {
		follower.KindUnsynced(id)
		n.prober.setSynced(id, false, follower)
	}()
	n.log.Info("follows a kind", zap.String("kind", k.GVK.String()))
	registration, err := informer.AddEventHandlerWithResyncPeriod(handler, 0)
	if err != nil {
		return fmt.Errorf("handler: %w", err)
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }() // fails only for a handler of another informer
	follower.KindFollowed(id)
	if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return fmt.Errorf("follow the objects: %w", context.Cause(ctx))
	}
	n.prober.setSynced(id, true, follower)
	<-ctx.Done()
	n.log.Info("follows a kind no more", zap.String("kind", k.GVK.String()))
	return nil
}
