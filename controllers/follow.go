package controllers

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Follow calls changed for each object of a kind that a cache has or gets, and for each later version of it, and deleted
// with the last known version of each that is gone; deleted may be nil. The calls come one after the other, in the order
// of the cache's events, until stop is called, which is never nil and may be called also after an error. Unless an
// option says otherwise, Follow waits until the cache has read the kind.
func Follow[T client.Object](ctx context.Context, objects cache.Cache, kind T, changed, deleted func(T), options ...cache.InformerGetOption) (stop func(), err error) {
	stop = func() {}
	if _, pods := any(kind).(*corev1.Pod); pods {
		return stop, errors.New("follow pods with podcache.Follow: the cache holds them packed")
	}
	informer, err := objects.GetInformer(ctx, kind, options...)
	if err != nil {
		return stop, fmt.Errorf("follow %T: %w", kind, err)
	}
	registration, err := informer.AddEventHandler(TypedHandler(changed, deleted))
	if err != nil {
		return stop, fmt.Errorf("follow %T: %w", kind, err)
	}
	return func() { _ = informer.RemoveEventHandler(registration) }, nil // fails only where the informer is gone
}

// TypedHandler returns the event handler of Follow, for an informer that no cache has.
func TypedHandler[T any](changed, deleted func(T)) toolscache.ResourceEventHandler {
	call := func(object any, handle func(T)) {
		if missed, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
			object = missed.Obj
		}
		if o, ok := object.(T); ok && handle != nil {
			handle(o)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { call(o, changed) }, UpdateFunc: func(_, o any) { call(o, changed) }, DeleteFunc: func(o any) { call(o, deleted) },
	}
}

// StoreOf returns the store of a cache for a kind, once it was read. Its objects must not be changed.
func StoreOf(ctx context.Context, objects cache.Cache, kind client.Object) (toolscache.Store, error) {
	informer, err := objects.GetInformer(ctx, kind)
	if err != nil {
		return nil, fmt.Errorf("follow %T: %w", kind, err)
	}
	shared, ok := informer.(toolscache.SharedIndexInformer)
	if !ok {
		return nil, fmt.Errorf("informer of %T is a %T: the cache must not be split by namespaces", kind, informer)
	}
	return shared.GetStore(), nil
}
