// Package children reads the objects that applications have made, of any kind, as they are in the cluster.
package children

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/applications/render"
)

// ErrUnread reports that the objects of a kind are not read yet, so nobody knows which ones exist.
var ErrUnread = errors.New("the objects of this kind are not read yet")

// Cache holds a summary of the objects of all kinds that applications have made. A kind is followed from its first use on. Its methods may be called
// concurrently and do not wait for a kind to be read.
type Cache struct {
	client  dynamic.Interface
	mapper  meta.ResettableRESTMapper
	changed func(app types.NamespacedName)
	deleted func(types.UID)

	mu sync.Mutex
	// follow runs an informer until the Cache ends; guarded by mu, nil before Start.
	follow  func(*childSource)
	sources map[schema.GroupVersionResource]*childSource // guarded by mu
	unknown map[schema.GroupKind]time.Time               // when a kind was not found; guarded by mu
}

// childSource follows the objects of one kind.
type childSource struct {
	toolscache.SharedIndexInformer

	mu    sync.Mutex
	fault error // why the objects cannot be read; guarded by mu
}

// readFault returns why the objects cannot be read, ErrUnread as long as nothing is known.
func (s *childSource) readFault() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault != nil {
		return s.fault
	}
	return ErrUnread
}

// onWatchError keeps the reason if it is one that only a person can change.
func (s *childSource) onWatchError(ctx context.Context, r *toolscache.Reflector, err error) {
	if !apierrors.IsForbidden(err) {
		toolscache.DefaultWatchErrorHandler(ctx, r, err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = unavailableError{fmt.Errorf("cloudcore may not read objects of this kind: bind a role to it that may (docs/operations/applications.md): %w", err)}
}

// New returns a Cache that calls changed for the application of an object that has changed, appeared or gone, and deleted for one that has gone. They must not block.
func New(client dynamic.Interface, mapper meta.ResettableRESTMapper, changed func(app types.NamespacedName), deleted func(types.UID)) *Cache {
	return &Cache{
		client: client, mapper: mapper, changed: changed, deleted: deleted,
		sources: map[schema.GroupVersionResource]*childSource{}, unknown: map[schema.GroupKind]time.Time{},
	}
}

// Start lets Get follow kinds until ctx ends; the group waits for them.
func (c *Cache) Start(ctx context.Context, g *errgroup.Group) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.follow = func(source *childSource) {
		g.Go(func() error {
			source.RunWithContext(ctx) // returns at once if ctx has ended
			return nil
		})
	}
}

// Get returns an object, nil if there is none. The error is ErrUnread as long as it is not known, or one of IsUnavailable.
func (c *Cache) Get(id render.ID) (*unstructured.Unstructured, error) {
	of, err := c.Resource(id.GroupKind())
	if err != nil {
		return nil, err
	}
	source, err := c.source(of)
	if err != nil {
		return nil, err
	}
	if !source.HasSynced() {
		return nil, fmt.Errorf("%s: %w", of.GroupResource(), source.readFault())
	}
	found, exists, err := source.GetStore().GetByKey(types.NamespacedName{Namespace: id.Namespace, Name: id.Name}.String())
	if err != nil || !exists {
		return nil, err
	}
	o, ok := found.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("%s is a %T in the cache", id, found)
	}
	return o, nil
}

// unavailableError is why the objects of a kind cannot be read or made, until a person changes that.
type unavailableError struct{ error }

// IsUnavailable reports whether an error of Get or Resource says that a kind is not served, has no namespace, or may not be read.
func IsUnavailable(err error) bool {
	var kind unavailableError
	return errors.As(err, &kind)
}

// unknownFor is how long a kind that the cluster does not have is not looked up again: each look reads all kinds.
const unknownFor = 30 * time.Second

// Resource returns the resource of a kind, in the version that is named or in the cluster's preferred one.
func (c *Cache) Resource(of schema.GroupKind, versions ...string) (schema.GroupVersionResource, error) {
	mapping, err := c.mapper.RESTMapping(of, versions...)
	if meta.IsNoMatchError(err) && c.mayLookUp(of) {
		c.mapper.Reset() // it may be new
		mapping, err = c.mapper.RESTMapping(of, versions...)
	}
	switch {
	case meta.IsNoMatchError(err):
		return schema.GroupVersionResource{}, unavailableError{fmt.Errorf("the cluster has no kind %s in %s", of.Kind, path.Join(append([]string{of.Group}, versions...)...))}
	case err != nil:
		return schema.GroupVersionResource{}, fmt.Errorf("look up %s: %w", of, err)
	case mapping.Scope.Name() != meta.RESTScopeNameNamespace:
		return schema.GroupVersionResource{}, unavailableError{fmt.Errorf("a %s belongs to the whole cluster: an application only makes objects of its own namespace", of.Kind)}
	}
	return mapping.Resource, nil
}

// mayLookUp reports whether a kind that was not found may be looked up again now.
func (c *Cache) mayLookUp(of schema.GroupKind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.unknown[of]) < unknownFor {
		return false
	}
	c.unknown[of] = time.Now()
	return true
}

func (c *Cache) source(of schema.GroupVersionResource) (*childSource, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if source := c.sources[of]; source != nil {
		return source, nil
	}
	if c.follow == nil {
		return nil, ErrUnread
	}
	source := &childSource{
		SharedIndexInformer: dynamicinformer.NewFilteredDynamicInformer(c.client, of, metav1.NamespaceAll, 0, toolscache.Indexers{}, nil).Informer(),
	}
	if err := errors.Join(source.SetTransform(keepSummary), source.SetWatchErrorHandlerWithContext(source.onWatchError)); err != nil {
		return nil, err
	}
	handler := controllers.TypedHandler(c.onChange, func(o *unstructured.Unstructured) {
		c.deleted(o.GetUID())
		c.onChange(o)
	})
	if _, err := source.AddEventHandler(handler); err != nil {
		return nil, err
	}
	c.sources[of] = source
	c.follow(source)
	return source, nil
}

// onChange enqueues the application of an object.
func (c *Cache) onChange(o *unstructured.Unstructured) {
	if owner := metav1.GetControllerOf(o); isApplication(owner) {
		c.changed(types.NamespacedName{Namespace: o.GetNamespace(), Name: owner.Name})
	}
}

func isApplication(owner *metav1.OwnerReference) bool {
	return owner != nil && owner.Kind == apps.EdgeApplicationKind && owner.APIVersion == apps.GroupVersion().String()
}

// keepSummary keeps of an object what this package reads: identity, annotations, owners, replicas and status.
func keepSummary(object any) (any, error) {
	o, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	kept := map[string]any{"apiVersion": o.GetAPIVersion(), "kind": o.GetKind()}
	metadata, _, _ := unstructured.NestedMap(o.Object, "metadata")
	delete(metadata, "managedFields")
	kept["metadata"] = metadata
	if isApplication(metav1.GetControllerOf(o)) { // of others only the existence matters
		if replicas, found, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "replicas"); found {
			kept["spec"] = map[string]any{"replicas": replicas}
		}
		if status, found, _ := unstructured.NestedMap(o.Object, "status"); found {
			kept["status"] = status
		}
	}
	o.Object = kept
	return o, nil
}
