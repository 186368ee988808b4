// Package membership holds which Node is in which NodeGroup now, for all controllers of a replica.
//
// View follows Nodes and NodeGroups and evaluates package assignment again when one of them changed in what decides. Every replica that
// has read the same objects has the same answer. Until both kinds are read there is none: Ready is false, and nobody may act on an empty
// answer. If the kind NodeGroup does not exist, there are no groups; if it may not be read, View never becomes ready. View writes nothing.
package membership

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/groups/assignment"
	"github.com/frond-edge/frond/controllers/groups/window"
)

// Rules returns the RBAC rules that cloudcore needs for this package.
func Rules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{apps.Group}, Resources: []string{apps.NodeGroupsResource}, Verbs: []string{"list", "watch"}},
	}
}

// View is the present assignment. Its methods may be called concurrently and do not block; what they return must not be changed.
type View struct {
	objects cache.Cache
	source  toolscache.ListerWatcher
	now     func() time.Time
	log     *zap.Logger
	ready   chan struct{}
	// dirty wakes the evaluation; it holds one wake-up.
	dirty chan struct{}

	mu sync.Mutex
	// groups are the last versions that were seen; guarded by mu.
	groups map[string]*group
	// labels are those of each Node that was seen, to recognize what changes nothing; guarded by mu.
	labels map[string]map[string]string
	// nodes is the informer's store, which has its own lock; guarded by mu, nil before Start.
	nodes toolscache.Store
	// loaded, missing and refused are about the reading of groups; guarded by mu.
	loaded, missing bool
	refused         string
	// current is the last result, valid once ready is closed; guarded by mu.
	current assignment.Assignment
	// subscribers are called, without the lock, after each change; guarded by mu.
	subscribers map[int]func()
	nextID      int
	// evaluations counts for tests; guarded by mu.
	evaluations int
}

// group is a NodeGroup with what was parsed of it.
type group struct {
	object  *apps.NodeGroup
	windows window.Windows
	fault   error
}

// New creates a View. objects must serve Nodes; source comes from ListGroups.
func New(objects cache.Cache, source toolscache.ListerWatcher, log *zap.Logger) *View {
	return &View{
		objects: objects, source: source, now: time.Now, log: log, ready: make(chan struct{}), dirty: make(chan struct{}, 1),
		groups: map[string]*group{}, labels: map[string]map[string]string{}, subscribers: map[int]func(){},
	}
}

// Ready reports whether all groups and Nodes are read and evaluated. Before, the other methods answer as if there were none, and their
// answers mean nothing.
func (v *View) Ready() bool {
	select {
	case <-v.ready:
		return true
	default:
		return false
	}
}

// Installed reports whether the kind NodeGroup exists. Without it there are no groups, and nothing may be taken from a Node for that.
func (v *View) Installed() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return !v.missing
}

// Synced is closed when Ready becomes true.
func (v *View) Synced() <-chan struct{} { return v.ready }

// GroupOf returns the group that a Node is a member of, and whether it is in one.
func (v *View) GroupOf(node string) (name string, member bool) { return v.Assignment().GroupOf(node) }

// Members returns the Nodes that are in a group, by name.
func (v *View) Members(name string) []string { return v.Assignment().Members(name) }

// Assignment returns the present assignment, which does not change.
func (v *View) Assignment() assignment.Assignment {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.current
}

// Group returns the last version of a NodeGroup.
func (v *View) Group(name string) (o *apps.NodeGroup, exists bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if g := v.groups[name]; g != nil {
		return g.object, true
	}
	return nil, false
}

// Groups returns the last versions of all NodeGroups, by name.
func (v *View) Groups() []*apps.NodeGroup {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := make([]*apps.NodeGroup, 0, len(v.groups))
	for _, g := range v.groups {
		all = append(all, g.object)
	}
	slices.SortFunc(all, func(a, b *apps.NodeGroup) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// WindowOf reports whether the applications of a group may be updated now, and when that changes next; the zero time is never. A group
// without the annotation is always open, and one that does not exist. An annotation that cannot be parsed keeps the group closed until it
// is corrected; WindowFault has the reason. Subscribers are told of a changed annotation, not of a window that opens or closes.
func (v *View) WindowOf(name string) (open bool, next time.Time) {
	v.mu.Lock()
	g := v.groups[name]
	v.mu.Unlock()
	switch {
	case g == nil:
		return true, time.Time{}
	case g.fault != nil:
		return false, time.Time{}
	}
	now := v.now()
	return g.windows.OpenAt(now), g.windows.Next(now)
}

// WindowFault returns why the maintenance windows of a group cannot be parsed, or nil.
func (v *View) WindowFault(name string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if g := v.groups[name]; g != nil {
		return g.fault
	}
	return nil
}

// Subscribe calls changed once when View becomes ready, and after each change of the assignment or of a NodeGroup (its status counts, as it
// holds the members). The call comes from one goroutine and must not block. It may come once more after stop.
func (v *View) Subscribe(changed func()) (stop func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	id := v.nextID
	v.nextID++
	v.subscribers[id] = changed
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.subscribers, id)
	}
}

// Start follows until ctx ends and then returns nil. The caller must start the cache.
func (v *View) Start(ctx context.Context) error {
	stop, err := controllers.Follow(ctx, v.objects, &corev1.Node{}, v.onNodeChanged, v.onNodeDeleted)
	defer stop()
	if err != nil {
		return controllers.IgnoreCanceled(ctx, err)
	}
	nodes, err := controllers.StoreOf(ctx, v.objects, &corev1.Node{})
	if err != nil {
		return controllers.IgnoreCanceled(ctx, err)
	}
	v.mu.Lock()
	v.nodes = nodes
	v.mu.Unlock()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return v.watchGroups(gctx) })
	g.Go(func() error {
		v.evaluateChanges(gctx)
		return nil
	})
	return controllers.IgnoreCanceled(ctx, g.Wait())
}

func (v *View) onNodeChanged(o *corev1.Node) {
	labels := assignment.NodeOf(o).Labels
	v.mu.Lock()
	was, known := v.labels[o.Name]
	v.labels[o.Name] = labels
	v.mu.Unlock()
	if !known || !maps.Equal(was, labels) {
		v.wake()
	}
}

func (v *View) onNodeDeleted(o *corev1.Node) {
	v.mu.Lock()
	delete(v.labels, o.Name)
	v.mu.Unlock()
	v.wake()
}

func (v *View) wake() {
	select {
	case v.dirty <- struct{}{}:
	default: // the evaluation that is due will see this change, too
	}
}

// evaluateChanges evaluates after changes until ctx ends. Changes that come together cost one evaluation.
func (v *View) evaluateChanges(ctx context.Context) {
	for {
		select {
		case <-v.dirty:
			v.evaluate()
		case <-ctx.Done():
			return
		}
	}
}

func (v *View) evaluate() {
	v.mu.Lock()
	if !v.loaded {
		v.mu.Unlock()
		return
	}
	objects := make([]*apps.NodeGroup, 0, len(v.groups))
	groups := make([]assignment.Group, 0, len(v.groups))
	for _, g := range v.groups {
		objects, groups = append(objects, g.object), append(groups, assignment.GroupOf(g.object))
	}
	store := v.nodes
	v.mu.Unlock()
	var nodes []assignment.Node
	for _, o := range store.List() {
		if node, ok := o.(*corev1.Node); ok {
			nodes = append(nodes, assignment.NodeOf(node))
		}
	}

	next := assignment.Assign(groups, nodes, assignment.Held(objects, nodes)) // only this goroutine evaluates, so the last result is the newest

	v.mu.Lock()
	v.current = next
	v.evaluations++
	subscribers := make([]func(), 0, len(v.subscribers))
	for _, id := range slices.Sorted(maps.Keys(v.subscribers)) {
		subscribers = append(subscribers, v.subscribers[id])
	}
	v.mu.Unlock()
	if !v.Ready() {
		close(v.ready)
	}
	for _, changed := range subscribers {
		changed()
	}
}
