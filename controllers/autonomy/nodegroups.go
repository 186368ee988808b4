package autonomy

import (
	"context"
	"reflect"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/apps"
)

// GroupSource has the NodeGroups of the cluster (package groups/membership).
type GroupSource interface {
	// Ready reports whether Groups is complete.
	Ready() bool
	Groups() []*apps.NodeGroup
	// Subscribe calls changed when the source becomes ready, and after changes.
	Subscribe(changed func()) (stop func())
}

// NodeGroups holds the NodeGroups with an annotation. It is empty, and not loaded, until its TolerationController runs.
type NodeGroups struct {
	source GroupSource

	mu     sync.Mutex
	byName map[string]nodeGroup // guarded by mu
	loaded bool                 // guarded by mu; there are no others
}

// NewNodeGroups creates an empty set.
func NewNodeGroups(source GroupSource) *NodeGroups {
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

// watchGroups keeps the NodeGroups in memory until ctx ends. Without the kind there are none; while they may not be read they are unknown,
// and pods keep what they have.
func (k *TolerationController) watchGroups(ctx context.Context) {
	changed := make(chan struct{}, 1) // one wake-up covers all changes before it is handled
	stop := k.groups.source.Subscribe(func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	defer stop()
	versions := map[string]*apps.NodeGroup{}
	for {
		if k.groups.source.Ready() {
			k.readGroups(versions)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// readGroups takes the groups from the source. versions are the objects that were taken before, and is updated.
func (k *TolerationController) readGroups(versions map[string]*apps.NodeGroup) {
	exists := map[string]bool{}
	for _, o := range k.groups.source.Groups() {
		exists[o.Name] = true
		if versions[o.Name] != o {
			versions[o.Name] = o
			k.onGroupChanged(o)
		}
	}
	for name, o := range versions {
		if !exists[name] {
			delete(versions, name)
			k.onGroupDeleted(o)
		}
	}
	if first := k.groups.markLoaded(); first {
		k.onGroupsLoaded()
	}
}

// onGroupsLoaded computes all choices again once all groups are known.
func (k *TolerationController) onGroupsLoaded() {
	k.refreshChoices(k.nodes.ListKeys()...)
	k.enqueuePods(func(string) bool { return true }) // also those of nodes that specify no stay any more
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
