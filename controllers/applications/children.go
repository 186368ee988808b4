package applications

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/controllers"
)

// errUnread reports that the objects of a kind are not read yet, so nobody knows which ones exist.
var errUnread = errors.New("the objects of this kind are not read yet")

// children are the objects of all kinds that applications have made, as they are in the cluster. A kind is followed from its first use on.
type children struct {
	client  dynamic.Interface
	changed func(app types.NamespacedName)
	log     *zap.Logger

	mu      sync.Mutex
	group   *errgroup.Group                              // guarded by mu; nil before start
	ctx     context.Context                              //nolint:containedctx // of the informers; guarded by mu
	sources map[schema.GroupVersionResource]*childSource // guarded by mu
}

// childSource follows the objects of one kind.
type childSource struct {
	toolscache.SharedIndexInformer

	mu    sync.Mutex
	fault error // why the objects cannot be read; guarded by mu
}

// readFault returns why the objects cannot be read, errUnread as long as nothing is known.
func (s *childSource) readFault() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault != nil {
		return s.fault
	}
	return errUnread
}

// onWatchError keeps the reason if it is one that only a person can change.
func (s *childSource) onWatchError(ctx context.Context, r *toolscache.Reflector, err error) {
	if !apierrors.IsForbidden(err) {
		toolscache.DefaultWatchErrorHandler(ctx, r, err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = errKind{fmt.Errorf("cloudcore may not read objects of this kind: bind a role to it that may (docs/operations/applications.md): %w", err)}
}

func newChildren(client dynamic.Interface, changed func(app types.NamespacedName), log *zap.Logger) *children {
	return &children{client: client, changed: changed, log: log, sources: map[schema.GroupVersionResource]*childSource{}}
}

// start lets get follow kinds until ctx ends; the group waits for them.
func (c *children) start(ctx context.Context, g *errgroup.Group) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ctx, c.group = ctx, g
}

// get returns an object, nil if there is none, or errUnread.
func (c *children) get(of schema.GroupVersionResource, key types.NamespacedName) (*unstructured.Unstructured, error) {
	source, err := c.source(of)
	if err != nil {
		return nil, err
	}
	if !source.HasSynced() {
		return nil, fmt.Errorf("%s: %w", of.GroupResource(), source.readFault())
	}
	found, exists, err := source.GetStore().GetByKey(key.String())
	if err != nil || !exists {
		return nil, err
	}
	o, ok := found.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("%s is a %T in the cache", key, found)
	}
	return o, nil
}

func (c *children) source(of schema.GroupVersionResource) (*childSource, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if source := c.sources[of]; source != nil {
		return source, nil
	}
	if c.ctx == nil || c.ctx.Err() != nil {
		return nil, errUnread
	}
	source := &childSource{
		SharedIndexInformer: dynamicinformer.NewFilteredDynamicInformer(c.client, of, metav1.NamespaceAll, 0, toolscache.Indexers{}, nil).Informer(),
	}
	if err := errors.Join(source.SetTransform(keepSummary), source.SetWatchErrorHandlerWithContext(source.onWatchError)); err != nil {
		return nil, err
	}
	handler := controllers.TypedHandler(c.onChange, c.onChange)
	if _, err := source.AddEventHandler(handler); err != nil {
		return nil, err
	}
	c.sources[of] = source
	ctx := c.ctx
	c.group.Go(func() error {
		source.RunWithContext(ctx)
		return nil
	})
	return source, nil
}

// onChange enqueues the application of an object.
func (c *children) onChange(o *unstructured.Unstructured) {
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
