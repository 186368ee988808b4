package podcache

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/controllers"
)

// Cache is a controller-runtime cache whose pods are packed. Other objects are cached as they are, without managedFields.
type Cache struct{ cache.Cache }

// errListPods is returned for a list of pods: it would unpack all of them.
var errListPods = errors.New("pods are packed in memory: read them one by one, or from the informer's store")

// New creates a Cache.
func New(config *rest.Config) (*Cache, error) {
	objects, err := cache.New(config, cache.Options{DefaultTransform: Transform})
	if err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	return &Cache{objects}, nil
}

// Transform is the client-go TransformFunc of the cache. An object that cannot be changed is cached as it is: none is lost.
func Transform(object any) (any, error) {
	if pod, ok := object.(*corev1.Pod); ok {
		if packed, err := Pack(pod); err == nil {
			return packed, nil
		}
		return pod, nil
	}
	if _, packed := object.(*Pod); packed {
		return object, nil // client-go may transform an object twice
	}
	if o, err := meta.Accessor(object); err == nil && o.GetManagedFields() != nil {
		o.SetManagedFields(nil)
	}
	return object, nil
}

// Get implements client.Reader.
func (c *Cache) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	pod, ok := into.(*corev1.Pod)
	if !ok {
		return c.Cache.Get(ctx, key, into, options...)
	}
	store, err := controllers.StoreOf(ctx, c.Cache, pod)
	if err != nil {
		return err
	}
	found, exists, err := store.GetByKey(key.String())
	if err != nil {
		return fmt.Errorf("read pod %s: %w", key, err)
	}
	if !exists {
		return apierrors.NewNotFound(corev1.Resource("pods"), key.Name)
	}
	packed, ok := Of(found)
	if !ok {
		return fmt.Errorf("pod %s is a %T in the cache", key, found)
	}
	whole, err := packed.Whole()
	if err != nil {
		return err
	}
	*pod = *whole
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	return nil
}

// List implements client.Reader. Pods cannot be listed.
func (c *Cache) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	if _, pods := into.(*corev1.PodList); pods {
		return errListPods
	}
	return c.Cache.List(ctx, into, options...)
}

// FollowSynced is Follow, and returns when changed was called for all pods that exist.
func FollowSynced(ctx context.Context, objects cache.Cache, changed, deleted func(*Pod)) (stop func(), err error) {
	stop, synced, err := follow(ctx, objects, changed, deleted)
	if err != nil {
		return stop, err
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), synced) {
		return stop, fmt.Errorf("follow pods: %w", context.Cause(ctx))
	}
	return stop, nil
}

// Follow is controllers.Follow for pods.
func Follow(ctx context.Context, objects cache.Cache, changed, deleted func(*Pod)) (stop func(), err error) {
	stop, _, err = follow(ctx, objects, changed, deleted)
	return stop, err
}

func follow(ctx context.Context, objects cache.Cache, changed, deleted func(*Pod)) (stop func(), synced func() bool, err error) {
	stop = func() {}
	informer, err := objects.GetInformer(ctx, &corev1.Pod{})
	if err != nil {
		return stop, nil, fmt.Errorf("follow pods: %w", err)
	}
	registration, err := informer.AddEventHandler(handler(changed, deleted))
	if err != nil {
		return stop, nil, fmt.Errorf("follow pods: %w", err)
	}
	return func() { _ = informer.RemoveEventHandler(registration) }, registration.HasSynced, nil // fails only where the informer is gone
}

func handler(changed, deleted func(*Pod)) toolscache.ResourceEventHandler {
	call := func(object any, handle func(*Pod)) {
		if p, ok := Of(object); ok && handle != nil {
			handle(p)
		}
	}
	return controllers.TypedHandler(func(o any) { call(o, changed) }, func(o any) { call(o, deleted) })
}
