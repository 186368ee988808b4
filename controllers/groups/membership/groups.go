package membership

import (
	"context"
	"fmt"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/groups/window"
)

// ListGroups returns a ListerWatcher of NodeGroups. It requests the resource itself, without discovery, so that a 404 is the apiserver's
// statement that there is no such kind.
func ListGroups(client rest.Interface) toolscache.ListerWatcher {
	return toolscache.NewListWatchFromClient(client, apps.NodeGroupsResource, metav1.NamespaceAll, fields.Everything())
}

// NewGroupClient returns a client of NodeGroups.
func NewGroupClient(config *rest.Config) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	if err := apps.AddToScheme(scheme); err != nil {
		return nil, err
	}
	version := apps.GroupVersion()
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion, config.ContentType = "/apis", &version, runtime.ContentTypeJSON
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("client of NodeGroups: %w", err)
	}
	return client, nil
}

// watchGroups keeps the NodeGroups in memory until ctx ends. Errors are logged and retried, at least once a minute.
func (v *View) watchGroups(ctx context.Context) error {
	informer := toolscache.NewSharedIndexInformer(v.source, &apps.NodeGroup{}, 0, toolscache.Indexers{})
	if err := informer.SetTransform(stripGroup); err != nil {
		return fmt.Errorf("follow groups: %w", err)
	}
	if err := informer.SetWatchErrorHandlerWithContext(v.onGroupsError); err != nil {
		return fmt.Errorf("follow groups: %w", err)
	}
	handled, err := informer.AddEventHandler(controllers.TypedHandler(v.onGroupChanged, v.onGroupDeleted))
	if err != nil {
		return fmt.Errorf("follow groups: %w", err)
	}
	var g errgroup.Group
	g.Go(func() error {
		informer.RunWithContext(ctx)
		return nil
	})
	select {
	case <-handled.HasSyncedChecker().Done():
		v.markLoaded()
	case <-ctx.Done():
	}
	return g.Wait()
}

func stripGroup(object any) (any, error) {
	if o, ok := object.(*apps.NodeGroup); ok {
		o.ManagedFields = nil
	}
	return object, nil
}

// onGroupsError logs once why the groups cannot be read, and what to do. If the kind does not exist, there are no groups. If reading is
// forbidden, or fails, they are unknown, or as they were last.
func (v *View) onGroupsError(ctx context.Context, r *toolscache.Reflector, err error) {
	reason := string(apierrors.ReasonForError(err))
	v.mu.Lock()
	known := len(v.groups) > 0
	reported := v.refused == reason
	v.refused = reason
	v.mu.Unlock()
	switch {
	case !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
		toolscache.DefaultWatchErrorHandler(ctx, r, err)
	case apierrors.IsNotFound(err) && known:
		// A kind that is removed deletes its objects first, which the watch tells. So this is something else, such as a proxy without a backend.
		v.log.Warn("kind NodeGroup is not found, although there are groups: they stay as they were", zap.Error(err))
	case reported:
	case apierrors.IsForbidden(err):
		v.log.Warn("NodeGroups may not be read: nothing is decided for groups of Nodes until deploy/rbac is applied", zap.Error(err))
	default:
		v.log.Warn("kind NodeGroup is not installed: there are no groups of Nodes until deploy/crd is applied", zap.Error(err))
	}
	if apierrors.IsNotFound(err) && !known {
		v.mu.Lock()
		v.missing = true
		v.mu.Unlock()
		v.markLoaded()
	}
}

// markLoaded records that all groups are known.
func (v *View) markLoaded() {
	v.mu.Lock()
	v.loaded = true
	v.mu.Unlock()
	v.wake()
}

func (v *View) onGroupChanged(o *apps.NodeGroup) {
	g := &group{object: o}
	g.windows, g.fault = window.Parse(o.Annotations[names.AnnotationMaintenanceWindows])
	v.mu.Lock()
	v.groups[o.Name], v.refused, v.missing = g, "", false
	v.mu.Unlock()
	v.wake()
}

func (v *View) onGroupDeleted(o *apps.NodeGroup) {
	v.mu.Lock()
	delete(v.groups, o.Name)
	v.mu.Unlock()
	v.wake()
}
