package autonomy

import (
	"context"
	"fmt"
	"reflect"
	"sync"

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
	"github.com/frond-edge/frond/controllers"
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

// NodeGroups holds the NodeGroups with an annotation. It is empty, and not loaded, until its TolerationController runs.
type NodeGroups struct {
	source toolscache.ListerWatcher

	mu     sync.Mutex
	byName map[string]nodeGroup // guarded by mu
	loaded bool                 // guarded by mu; there are no others
	// lastRefusal is why they could not be read last; guarded by mu.
	lastRefusal metav1.StatusReason
}

// NewNodeGroups creates an empty set; source comes from NewGroupLister.
func NewNodeGroups(source toolscache.ListerWatcher) *NodeGroups {
	return &NodeGroups{source: source, byName: map[string]nodeGroup{}}
}

// Lookup returns how long the pods of a Node stay while it is unreachable, as its own annotation or its group's
// specifies, and the NodeGroup that specifies it, "" being the Node itself. An empty value is the Kubernetes default.
// known is false while a group that was not read yet may specify otherwise. It does not block.
func (g *NodeGroups) Lookup(node *corev1.Node) (value, group string, known bool) {
	c, known := g.chooseForNode(node)
	if c.isDefault() {
		return "", "", known
	}
	return c.value, c.group, known
}

// chooseForNode returns the choice for a Node; known is false if it depends on groups that are not all read.
func (g *NodeGroups) chooseForNode(node *corev1.Node) (c choice, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c = chooseStay(node, g.byName)
	if !g.loaded && (!c.specified || c.group != "") {
		return choice{}, false
	}
	return c, true
}

// putGroup stores a group, or removes one without an annotation. It reports whether choices may have changed.
func (g *NodeGroups) putGroup(name string, is nodeGroup) (changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.byName[name]
	if is.choice.isDefault() {
		is = nodeGroup{}
		delete(g.byName, name)
	} else {
		g.byName[name] = is
	}
	g.lastRefusal = ""
	return g.loaded && !reflect.DeepEqual(before, is)
}

// markLoaded records that all groups are known, and reports whether they were not before.
func (g *NodeGroups) markLoaded() (first bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	first = !g.loaded
	g.loaded = true
	return first
}

// removeAll removes all groups.
func (g *NodeGroups) removeAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.byName)
}

// recordRefusal records why the groups cannot be read, and reports whether the last refusal was for the same reason.
func (g *NodeGroups) recordRefusal(reason metav1.StatusReason) (repeated bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	repeated = g.lastRefusal == reason
	g.lastRefusal = reason
	return repeated
}

// watchGroups keeps the NodeGroups in memory until ctx ends. Errors are logged and retried, at least once a minute.
func (k *TolerationController) watchGroups(ctx context.Context) error {
	informer := toolscache.NewSharedIndexInformer(k.groups.source, &apps.NodeGroup{}, 0, toolscache.Indexers{})
	if err := informer.SetTransform(stripGroup); err != nil {
		return fmt.Errorf("follow groups: %w", err)
	}
	if err := informer.SetWatchErrorHandlerWithContext(k.onGroupsError); err != nil {
		return fmt.Errorf("follow groups: %w", err)
	}
	handled, err := informer.AddEventHandler(controllers.TypedHandler(k.onGroupChanged, k.onGroupDeleted))
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
	reported := k.groups.recordRefusal(reason)
	switch {
	case !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
		toolscache.DefaultWatchErrorHandler(ctx, r, err)
	case reported:
	case apierrors.IsForbidden(err):
		k.log.Warn("groups of nodes may not be read: only annotations of Nodes count, and pods of other Nodes stay as they are, until deploy/rbac is applied", zap.Error(err))
	default:
		k.log.Warn("kind NodeGroup is not installed: only annotations of Nodes count, until deploy/crd is applied", zap.Error(err))
	}
	if apierrors.IsNotFound(err) {
		k.groups.removeAll()
		k.onGroupsLoaded()
	}
}

// onGroupsLoaded computes all choices again once all groups are known.
func (k *TolerationController) onGroupsLoaded() {
	first := k.groups.markLoaded()
	k.refreshChoices(k.nodes.ListKeys()...)
	if first {
		k.enqueuePods(func(string) bool { return true }) // also those of nodes that specify no stay any more
	}
}

func (k *TolerationController) onGroupChanged(o *apps.NodeGroup) {
	g, err := newNodeGroup(o)
	k.faults.recordFault(corev1.ObjectReference{
		APIVersion: apps.GroupVersion().String(), Kind: apps.NodeGroupKind, Name: o.Name, UID: o.UID,
	}, err)
	if k.groups.putGroup(o.Name, g) {
		k.refreshChoices(k.nodes.ListKeys()...)
	}
}

func (k *TolerationController) onGroupDeleted(o *apps.NodeGroup) {
	gone := o.DeepCopy()
	gone.Annotations = nil
	k.onGroupChanged(gone) // a group without an annotation counts as none
}
