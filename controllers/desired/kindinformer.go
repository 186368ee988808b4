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

// followAgain is the pause after a kind could not be followed. Who grants scopes has listed it before, so it is rare.
const followAgain = 5 * time.Second

// follower keeps a kind in the cache that is not in the table of kinds: one that only scopes want, as long as a node of this replica
// has one, or an optional one while it is served. Guarded by Engine.mu.
type follower struct {
	kind *kind
	// wants counts the scopes, and the apiserver that serves an optional kind.
	wants   int
	running bool
	// stop ends the present following; nil between two.
	stop context.CancelFunc
}

// followed are the kinds of followers whose objects are all in the cache.
type followed struct {
	mu     sync.RWMutex
	kinds  map[groupResource]*kind              // guarded by mu
	stores map[groupResource]toolscache.Indexer // guarded by mu
}

func (f *followed) set(id groupResource, k *kind, store toolscache.Indexer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kinds[id], f.stores[id] = k, store
}

func (f *followed) unset(id groupResource) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.kinds, id)
	delete(f.stores, id)
}

// lookup returns a kind and its objects, nil for one that is not followed.
func (e *Engine) lookup(id groupResource) (*kind, toolscache.Indexer) {
	if k := e.kinds[id]; k != nil {
		return k, e.stores[k]
	}
	e.followed.mu.RLock()
	defer e.followed.mu.RUnlock()
	return e.followed.kinds[id], e.followed.stores[id]
}

// wantKind counts a scope of a kind. The caller holds mu.
func (e *Engine) wantKind(want wire.ScopeKind) {
	id := groupResource{want.Group, want.Resource}
	if e.kinds[id] != nil {
		return
	}
	e.wantFollowed(id, schema.GroupVersionKind{Group: want.Group, Version: want.Version, Kind: want.Kind})
}

// wantFollowed counts who wants a kind followed that is not in the table of kinds. The caller holds mu.
func (e *Engine) wantFollowed(id groupResource, gvk schema.GroupVersionKind) {
	f := e.followers[id]
	if f == nil {
		f = &follower{}
		e.followers[id] = f
	}
	f.wants++
	next := e.followedKind(gvk, id.resource)
	if f.kind == nil || f.kind.gvk != next.gvk { // the newest word on the version counts
		f.kind = next
		if f.stop != nil {
			f.stop()
		}
	}
	e.wakeFollowers()
}

// unwantKind undoes wantKind. The caller holds mu.
func (e *Engine) unwantKind(id groupResource) {
	f := e.followers[id]
	if f == nil {
		return
	}
	if f.wants--; f.wants == 0 && f.stop != nil {
		f.stop()
	}
	e.wakeFollowers()
}

func (e *Engine) wakeFollowers() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// runFollowers runs each follower that has none running, until ctx ends.
func (e *Engine) runFollowers(ctx context.Context) error {
	var g errgroup.Group
	for {
		e.mu.Lock()
		for id, f := range e.followers {
			switch {
			case f.running:
			case f.wants == 0:
				delete(e.followers, id)
			default:
				f.running = true
				g.Go(func() error {
					e.runFollower(ctx, id, f)
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

// runFollower follows one kind until no scope wants it.
func (e *Engine) runFollower(ctx context.Context, id groupResource, f *follower) {
	for {
		e.mu.Lock()
		if f.stop = nil; f.wants == 0 || ctx.Err() != nil {
			f.running = false
			e.mu.Unlock()
			e.wakeFollowers()
			return
		}
		k := f.kind
		kctx, stop := context.WithCancel(ctx)
		f.stop = stop
		e.mu.Unlock()
		if err := e.followOne(kctx, id, k); err != nil && kctx.Err() == nil {
			e.log.Warn("kind not followed, trying again", zap.String("kind", k.gvk.String()), zap.Error(err))
			select {
			case <-kctx.Done():
			case <-time.After(followAgain):
			}
		}
		stop()
	}
}

// followOne keeps one kind in the cache until ctx ends.
func (e *Engine) followOne(ctx context.Context, id groupResource, k *kind) error {
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
	if err := index(informer, k); err != nil {
		return err
	}
	e.mu.Lock()
	e.followed.set(id, k, informer.GetIndexer())
	e.placeKind(id, k, informer.GetIndexer())
	e.mu.Unlock()
	defer e.empty(id)
	e.log.Info("follows a kind", zap.String("kind", k.gvk.String()))
	// The handler comes first: what changes after refill's look is told by it.
	registration, err := informer.AddEventHandlerWithResyncPeriod(e.handler(k), 0)
	if err != nil {
		return fmt.Errorf("handler: %w", err)
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }() // fails only for a handler of another informer
	e.refill(id)
	if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return fmt.Errorf("follow the objects: %w", context.Cause(ctx))
	}
	e.mu.Lock()
	e.recordFollowed(id, true)
	e.mu.Unlock()
	<-ctx.Done()
	e.log.Info("follows a kind no more", zap.String("kind", k.gvk.String()))
	return nil
}

// empty notes that a kind is followed no more: what of it is there is not known.
func (e *Engine) empty(id groupResource) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.followed.unset(id)
	e.recordFollowed(id, false)
	for namespace, sites := range e.audiences[id] {
		for s := range sites {
			s.scopes[scopeID{id, namespace}].filled = false
		}
	}
}

func (e *Engine) countFollowed() float64 {
	e.followed.mu.RLock()
	defer e.followed.mu.RUnlock()
	return float64(len(e.followed.kinds))
}
