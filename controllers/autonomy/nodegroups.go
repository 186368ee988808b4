package autonomy

import (
	"context"
	"fmt"
	"reflect"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/frond-edge/frond/api/apps"
)

// NewGroupLister returns a ListerWatcher of NodeGroups. It requests the resource itself, without discovery, so that a
// 404 is the apiserver's statement that there is no such kind.
func NewGroupLister(config *rest.Config) (toolscache.ListerWatcher, error) {
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
	return toolscache.NewListWatchFromClient(client, apps.NodeGroupsResource, metav1.NamespaceAll, fields.Everything()), nil
}

// watchGroups keeps the NodeGroups in memory until ctx ends. Errors are logged and retried, at least once a minute.
func (k *TolerationController) watchGroups(ctx context.Context) error {
	informer := toolscache.NewSharedIndexInformer(k.groupSource, &apps.NodeGroup{}, 0, toolscache.Indexers{})
	if err := informer.SetTransform(stripGroup); err != nil {
		return fmt.Errorf("follow groups: %w", err)
	}
	if err := informer.SetWatchErrorHandlerWithContext(k.onGroupsError); err != nil {
		return fmt.Errorf("follow groups: %w", err)
	}
	handled, err := informer.AddEventHandler(typedHandler(k.onGroupChanged, k.onGroupDeleted))
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
		k.onGroupsLoaded()
	case <-ctx.Done():
	}
	return g.Wait()
}

// stripGroup drops the fields that are not read: a status has an entry per Node.
func stripGroup(object any) (any, error) {
	if o, ok := object.(*apps.NodeGroup); ok {
		o.ManagedFields, o.Status = nil, apps.NodeGroupStatus{}
	}
	return object, nil
}

// onGroupsError logs once why the groups cannot be read, and what to do. If the kind does not exist, there are no
// groups, and the controller works without them. If reading is forbidden, the groups are unknown: then pods keep what they have.
func (k *TolerationController) onGroupsError(ctx context.Context, r *toolscache.Reflector, err error) {
	reason := apierrors.ReasonForError(err)
	k.mu.Lock()
	told := k.lastRefusal == reason
	k.lastRefusal = reason
	k.mu.Unlock()
	switch {
	case !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
		toolscache.DefaultWatchErrorHandler(ctx, r, err)
	case told:
	case apierrors.IsForbidden(err):
		k.log.Warn("groups of nodes may not be read: only annotations of Nodes count, and pods of other Nodes stay as they are, until deploy/rbac is applied", zap.Error(err))
	default:
		k.log.Warn("kind NodeGroup is not installed: only annotations of Nodes count, until deploy/crd is applied", zap.Error(err))
	}
	if apierrors.IsNotFound(err) {
		k.mu.Lock()
		clear(k.groups)
		k.mu.Unlock()
		k.onGroupsLoaded()
	}
}

// onGroupsLoaded computes all choices again once all groups are known.
func (k *TolerationController) onGroupsLoaded() {
	k.mu.Lock()
	first := !k.groupsLoaded
	k.groupsLoaded = true
	k.mu.Unlock()
	k.refreshChoices(k.nodes.ListKeys()...)
	if first {
		k.enqueuePods(func(string) bool { return true }) // also those of nodes that specify no stay any more
	}
}

func (k *TolerationController) onGroupChanged(o *apps.NodeGroup) {
	g, err := newNodeGroup(o)
	k.recordFault(corev1.ObjectReference{
		APIVersion: apps.GroupVersion().String(), Kind: apps.NodeGroupKind, Name: o.Name, UID: o.UID,
	}, err)
	k.mu.Lock()
	before := k.groups[o.Name]
	if g.choice.isDefault() {
		g = nodeGroup{}
		delete(k.groups, o.Name)
	} else {
		k.groups[o.Name] = g
	}
	k.lastRefusal = ""
	changed := k.groupsLoaded && !reflect.DeepEqual(before, g)
	k.mu.Unlock()
	if changed {
		k.refreshChoices(k.nodes.ListKeys()...)
	}
}

func (k *TolerationController) onGroupDeleted(o *apps.NodeGroup) {
	gone := o.DeepCopy()
	gone.Annotations = nil
	k.onGroupChanged(gone) // a group without an annotation counts as none
}
