package kindsync

import (
	"context"
	"fmt"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/objectcache"
)

// StartFixed subscribes to kinds that are always in the cache and returns when each handler has seen every existing object:
// before that, absence proves nothing. synced is called when the cache holds all objects, before the handlers see any. The
// returned function ends the subscriptions and is never nil.
func StartFixed(
	ctx context.Context, objects cache.Cache, fixed map[kinds.ID]*kinds.Spec,
	synced func([]objectcache.Kind), handlerOf func(*kinds.Spec) toolscache.ResourceEventHandler,
) (stop func(), err error) {
	var undo []func()
	stop = func() {
		for _, f := range undo {
			f()
		}
	}
	informers := map[*kinds.Spec]toolscache.SharedIndexInformer{}
	var stored, handled []toolscache.InformerSynced
	for _, k := range fixed {
		if informers[k], err = informerFor(ctx, objects, k); err != nil {
			return stop, fmt.Errorf("follow %s: %w", k.Resource, err)
		}
		stored = append(stored, informers[k].HasSynced)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), stored...) {
		return stop, fmt.Errorf("fill the cache: %w", context.Cause(ctx))
	}
	var all []objectcache.Kind
	for k, informer := range informers {
		all = append(all, objectcache.Kind{Spec: k, Store: informer.GetIndexer()})
	}
	synced(all)
	for k, informer := range informers {
		registration, err := informer.AddEventHandlerWithResyncPeriod(handlerOf(k), 0)
		if err != nil {
			return stop, fmt.Errorf("follow %s: %w", k.Resource, err)
		}
		undo = append(undo, func() { _ = informer.RemoveEventHandler(registration) })
		handled = append(handled, registration.HasSynced)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), handled...) {
		return stop, fmt.Errorf("follow the objects: %w", context.Cause(ctx))
	}
	return stop, nil
}

// informerFor returns a kind's informer, with the indexes of the kind.
func informerFor(ctx context.Context, objects cache.Cache, k *kinds.Spec) (toolscache.SharedIndexInformer, error) {
	found, err := objects.GetInformer(ctx, k.Object(), cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("informer: %w", err)
	}
	informer, ok := found.(toolscache.SharedIndexInformer)
	if !ok {
		return nil, fmt.Errorf("informer is a %T: the cache must not be split by namespaces", found)
	}
	return informer, k.AddIndexes(informer)
}
