package desired

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

	"github.com/frond-edge/frond/api/wire"
)

// informerRetry is the pause after a kind could not be synced. The component that grants scopes has listed the kind
// before, so this is rare.
const informerRetry = 5 * time.Second

// kindInformer keeps a kind in the cache that is not in kindTable: a kind that only scopes want, while a node of this
// replica has such a scope, or an optional kind, while it is served. Guarded by Engine.mu.
type kindInformer struct {
	kind *kindSpec
	// refCount counts the scopes, plus one while the apiserver serves an optional kind.
	refCount int
	running  bool
	// stop ends the present run; nil between two runs.
	stop context.CancelFunc
}

// kindRegistry holds the kinds of kindInformers whose objects are all in the cache.
type kindRegistry struct {
	mu     sync.RWMutex
	kinds  map[groupResource]*kindSpec          // guarded by mu
	stores map[groupResource]toolscache.Indexer // guarded by mu
}

func (f *kindRegistry) setKind(id groupResource, k *kindSpec, store toolscache.Indexer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kinds[id], f.stores[id] = k, store
}

func (f *kindRegistry) removeKind(id groupResource) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.kinds, id)
	delete(f.stores, id)
}

// lookupKind returns a kind and its store; nil for a kind that is not synced.
func (e *Engine) lookupKind(id groupResource) (*kindSpec, toolscache.Indexer) {
	if k := e.kinds[id]; k != nil {
		return k, e.stores[k]
	}
	e.synced.mu.RLock()
	defer e.synced.mu.RUnlock()
	return e.synced.kinds[id], e.synced.stores[id]
}

// retainScopeKind adds a scope's reference to its kind. The caller holds mu.
func (e *Engine) retainScopeKind(want wire.ScopeKind) {
	id := groupResource{want.Group, want.Resource}
	if e.kinds[id] != nil {
		return
	}
	e.retainKind(id, schema.GroupVersionKind{Group: want.Group, Version: want.Version, Kind: want.Kind})
}

// retainKind adds a reference to a kind that is not in kindTable. The caller holds mu.
func (e *Engine) retainKind(id groupResource, gvk schema.GroupVersionKind) {
	f := e.kindInformers[id]
	if f == nil {
		f = &kindInformer{}
		e.kindInformers[id] = f
	}
	f.refCount++
	next := e.dynamicKind(gvk, id.resource)
	if f.kind == nil || f.kind.gvk != next.gvk { // the latest version that was requested wins
		f.kind = next
		if f.stop != nil {
			f.stop()
		}
	}
	e.wakeInformers()
}

// releaseKind undoes retainScopeKind. The caller holds mu.
func (e *Engine) releaseKind(id groupResource) {
	f := e.kindInformers[id]
	if f == nil {
		return
	}
	if f.refCount--; f.refCount == 0 && f.stop != nil {
		f.stop()
	}
	e.wakeInformers()
}

func (e *Engine) wakeInformers() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// runInformers starts each kindInformer that is not running, until ctx ends.
func (e *Engine) runInformers(ctx context.Context) error {
	var g errgroup.Group
	for {
		e.mu.Lock()
		for id, f := range e.kindInformers {
			switch {
			case f.running:
			case f.refCount == 0:
				delete(e.kindInformers, id)
			default:
				f.running = true
				g.Go(func() error {
					e.runInformer(ctx, id, f)
					return nil
				})
			}
		}
		e.mu.Unlock()
		select {
		case <-ctx.Done():
			return g.Wait()
		case <-e.wake:
		}
	}
}

// runInformer keeps one kind synced until nothing refers to it.
func (e *Engine) runInformer(ctx context.Context, id groupResource, f *kindInformer) {
	for {
		e.mu.Lock()
		if f.stop = nil; f.refCount == 0 || ctx.Err() != nil {
			f.running = false
			e.mu.Unlock()
			e.wakeInformers()
			return
		}
		k := f.kind
		kctx, stop := context.WithCancel(ctx)
		f.stop = stop
		e.mu.Unlock()
		if err := e.syncKind(kctx, id, k); err != nil && kctx.Err() == nil {
			e.log.Warn("kind not followed, trying again", zap.String("kind", k.gvk.String()), zap.Error(err))
			select {
			case <-kctx.Done():
			case <-time.After(informerRetry):
			}
		}
		stop()
	}
}

// syncKind keeps one kind in the cache until ctx ends.
func (e *Engine) syncKind(ctx context.Context, id groupResource, k *kindSpec) error {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(k.gvk)
	found, err := e.cache.GetInformer(ctx, object, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("informer: %w", err)
	}
	defer func() {
		if err := e.cache.RemoveInformer(context.WithoutCancel(ctx), object); err != nil {
			e.log.Warn("informer not ended", zap.String("kind", k.gvk.String()), zap.Error(err))
		}
	}()
	informer, ok := found.(toolscache.SharedIndexInformer)
	if !ok {
		return fmt.Errorf("informer is a %T", found)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return fmt.Errorf("fill the cache: %w", context.Cause(ctx))
	}
	if err := addIndexes(informer, k); err != nil {
		return err
	}
	e.mu.Lock()
	e.synced.setKind(id, k, informer.GetIndexer())
	e.placeKind(id, k, informer.GetIndexer())
	e.mu.Unlock()
	defer e.markUnsynced(id)
	e.log.Info("follows a kind", zap.String("kind", k.gvk.String()))
	// The handler is added first: it receives every change after refillScopes has read the store.
	registration, err := informer.AddEventHandlerWithResyncPeriod(e.eventHandler(k), 0)
	if err != nil {
		return fmt.Errorf("handler: %w", err)
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }() // fails only for a handler of another informer
	e.refillScopes(id)
	if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return fmt.Errorf("follow the objects: %w", context.Cause(ctx))
	}
	e.mu.Lock()
	e.recordSynced(id, true)
	e.mu.Unlock()
	<-ctx.Done()
	e.log.Info("follows a kind no more", zap.String("kind", k.gvk.String()))
	return nil
}

// markUnsynced records that a kind is no longer synced: which of its objects exist is not known.
func (e *Engine) markUnsynced(id groupResource) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.synced.removeKind(id)
	e.recordSynced(id, false)
	for namespace, sites := range e.subscribers[id] {
		for s := range sites {
			s.scopes[scopeID{id, namespace}].filled = false
		}
	}
}

func (e *Engine) countSyncedKinds() float64 {
	e.synced.mu.RLock()
	defer e.synced.mu.RUnlock()
	return float64(len(e.synced.kinds))
}
