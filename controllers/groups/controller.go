package groups

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/groups/assignment"
	"github.com/frond-edge/frond/controllers/groups/membership"
	"github.com/frond-edge/frond/controllers/podcache"
)

const (
	// nodeWorkers and groupWorkers are the numbers of concurrent API writes.
	nodeWorkers, groupWorkers = 8, 4
	retryBase, retryMax       = 100 * time.Millisecond, 10 * time.Second
	requestTimeout            = 10 * time.Second
	// conflictRetry is the delay after a write that lost against another one; the cache has it by then.
	conflictRetry = 100 * time.Millisecond
	// settleTime is how long the Nodes that have left a group must be the same before their pods are evicted, as in package deletionguard.
	settleTime = 2 * time.Second
	// staleRetry is the delay where the cache and the apiserver say different things.
	staleRetry = time.Second
	// budgetRetry is the delay before an eviction is tried again that a PodDisruptionBudget did not permit.
	budgetRetry = 10 * time.Second
	// readinessDelay gathers changes of the condition Ready of the Nodes of a group, whose status is then written once.
	readinessDelay = 500 * time.Millisecond
)

// Rules returns the RBAC rules that cloudcore needs for this package.
func Rules() []rbacv1.PolicyRule {
	return append(membership.Rules(),
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch", "patch"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}},
		rbacv1.PolicyRule{APIGroups: []string{apps.Group}, Resources: []string{apps.NodeGroupsResource}, Verbs: []string{"get", "patch"}},
		rbacv1.PolicyRule{APIGroups: []string{apps.Group}, Resources: []string{apps.NodeGroupsResource + "/status"}, Verbs: []string{"update"}},
	)
}

// Warn records a Warning event about an object. It must not block.
type Warn func(about corev1.ObjectReference, reason, message string)

// Controller carries out NodeGroups.
type Controller struct {
	kube    kubernetes.Interface
	groups  groupClient
	objects cache.Cache
	view    *membership.View
	owner   controllers.Ownership
	warn    Warn
	metrics groupMetrics
	log     *zap.Logger
	pods    *podIndex
	evictor *evictor

	nodeQueue, groupQueue controllers.Queue[string]
	// nodes is the informer's store, which has its own lock. It is set before the workers start.
	nodes toolscache.Store

	mu sync.Mutex
	// marks are what groups say of each Node; guarded by mu.
	marks map[string]nodeMark
	// seen is what each group was last enqueued for; guarded by mu.
	seen map[string]groupInput
	// held is why evictions of each group of this replica are held; guarded by mu.
	held map[string]string
}

// nodeMark is the part of a Node that a group's status repeats.
type nodeMark struct{ ready, group, zone string }

// groupInput is what a group's status and evictions follow from, beside its Nodes and pods.
type groupInput struct {
	object           *apps.NodeGroup
	members, missing []string
	conflicts        []assignment.Conflict
}

// New creates a Controller. objects must serve Nodes and Pods; client is NewGroupClient's; metrics may be nil.
func New(guard Guard, kube kubernetes.Interface, client rest.Interface, objects cache.Cache, view *membership.View, owner controllers.Ownership, warn Warn,
	metrics prometheus.Registerer, log *zap.Logger,
) *Controller {
	c := &Controller{
		kube: kube, groups: groupClient{client}, objects: objects, view: view, owner: owner, warn: warn, metrics: newGroupMetrics(metrics), log: log,
		pods: newPodIndex(), marks: map[string]nodeMark{}, seen: map[string]groupInput{}, held: map[string]string{},
	}
	c.evictor = &evictor{
		guard: guard, kube: kube, groups: c.groups, view: view, pods: c.pods, node: c.cachedNode, metrics: c.metrics, log: log, leaving: map[string]leaving{},
		requeueAfter: func(group string, after time.Duration) { c.groupQueue.AddAfter(group, after) },
	}
	return c
}

// Start carries out the groups until ctx ends and then returns nil. The caller must start the cache and the view.
func (c *Controller) Start(ctx context.Context) error {
	c.nodeQueue, c.groupQueue = controllers.NewQueue[string](retryBase, retryMax), controllers.NewQueue[string](retryBase, retryMax)
	defer c.nodeQueue.ShutDown()
	defer c.groupQueue.ShutDown()
	stop, err := c.follow(ctx)
	defer stop()
	if err != nil {
		return controllers.IgnoreCanceled(ctx, err)
	}
	var g errgroup.Group
	g.Go(func() error {
		c.watchOwnership(ctx)
		return nil
	})
	g.Go(func() error {
		controllers.ProcessQueue(ctx, c.nodeQueue, nodeWorkers, c.logged("labels of a node not written, trying again", c.reconcileNode))
		return nil
	})
	g.Go(func() error {
		controllers.ProcessQueue(ctx, c.groupQueue, groupWorkers, c.logged("group not carried out, trying again", c.reconcileGroup))
		return nil
	})
	return g.Wait()
}

// logged logs the errors of a reconcile function.
func (c *Controller) logged(message string, reconcile func(context.Context, string) error) func(context.Context, string) error {
	return func(ctx context.Context, name string) error {
		err := reconcile(ctx, name)
		if err != nil && ctx.Err() == nil {
			c.log.Warn(message, zap.String("name", name), zap.Error(err))
		}
		return err
	}
}

// follow subscribes to Nodes, pods and the view. The returned function ends the subscriptions and is never nil.
func (c *Controller) follow(ctx context.Context) (stop func(), err error) {
	stop = func() {}
	if c.nodes, err = controllers.StoreOf(ctx, c.objects, &corev1.Node{}); err != nil {
		return stop, err
	}
	stopNodes, err := controllers.Follow(ctx, c.objects, &corev1.Node{}, c.onNodeChanged, c.onNodeDeleted)
	if err != nil {
		return stop, err
	}
	stopPods, err := podcache.FollowSynced(ctx, c.objects, func(p *podcache.Pod) { c.onPod(c.pods.put(p)) }, func(p *podcache.Pod) {
		c.onPod(c.pods.remove(types.NamespacedName{Namespace: p.Namespace(), Name: p.Name()}))
	})
	if err != nil {
		return stopNodes, err
	}
	stopView := c.view.Subscribe(c.onViewChanged)
	c.enqueueAll()
	return func() {
		stopView()
		stopPods()
		stopNodes()
	}, nil
}

// mayAct reports whether it is known which Nodes are in which group.
func (c *Controller) mayAct() bool { return c.view.Ready() && c.view.Installed() }

// watchOwnership enqueues everything when this replica comes to own nodes or groups.
func (c *Controller) watchOwnership(ctx context.Context) {
	for {
		changed := c.owner.Changed() // read first, so that no change is missed in between
		c.enqueueAll()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (c *Controller) enqueueAll() {
	for _, name := range c.nodes.ListKeys() {
		c.nodeQueue.Add(name)
	}
	for _, o := range c.view.Groups() {
		c.groupQueue.Add(o.Name)
	}
}

// onNodeChanged enqueues a Node whose labels are not what they should be, and the groups whose status repeats what has changed.
func (c *Controller) onNodeChanged(node *corev1.Node) {
	mark := nodeMark{readyStatus(node), node.Labels[names.LabelNodeGroup], node.Labels[corev1.LabelTopologyZone]}
	c.mu.Lock()
	last := c.marks[node.Name]
	c.marks[node.Name] = mark
	c.mu.Unlock()
	if !c.mayAct() {
		return // onViewChanged enqueues everything
	}
	if !c.wantedChange(node).empty() {
		c.nodeQueue.Add(node.Name)
	}
	if mark == last {
		return
	}
	if last.group != mark.group && last.group != "" {
		c.groupQueue.Add(last.group) // its pods may leave now
	}
	a := c.view.Assignment()
	for _, o := range c.view.Groups() {
		group, _ := a.GroupOf(node.Name)
		conflict := slices.ContainsFunc(a.Conflicts(o.Name), func(x assignment.Conflict) bool { return x.Node == node.Name })
		if o.Name == group || conflict {
			c.groupQueue.AddAfter(o.Name, readinessDelay)
		}
	}
}

func (c *Controller) onNodeDeleted(node *corev1.Node) {
	c.mu.Lock()
	delete(c.marks, node.Name)
	c.mu.Unlock()
	if group := node.Labels[names.LabelNodeGroup]; group != "" {
		c.groupQueue.Add(group)
	}
}

// onPod enqueues the group that a pod demands, if the pod is on a node outside of it.
func (c *Controller) onPod(group, node string) {
	if group == "" || !c.mayAct() {
		return
	}
	if is, _ := c.view.GroupOf(node); is != group {
		c.groupQueue.Add(group)
	}
}

// onViewChanged enqueues the groups that have other members, or another object, than when it was last called, and the Nodes that need a change.
func (c *Controller) onViewChanged() {
	if !c.mayAct() {
		return
	}
	a := c.view.Assignment()
	seen := map[string]groupInput{}
	for _, o := range c.view.Groups() {
		seen[o.Name] = groupInput{object: o, members: a.Members(o.Name), missing: a.Missing(o.Name), conflicts: a.Conflicts(o.Name)}
	}
	c.mu.Lock()
	last := c.seen
	c.seen = seen
	c.mu.Unlock()
	for name, is := range seen {
		was := last[name]
		if was.object != is.object || !slices.Equal(was.members, is.members) || !slices.Equal(was.missing, is.missing) || !slices.Equal(was.conflicts, is.conflicts) {
			c.groupQueue.Add(name)
		}
	}
	for name := range last {
		if _, exists := seen[name]; !exists {
			c.groupQueue.Add(name) // to forget it
		}
	}
	for _, o := range c.nodes.List() {
		if node, ok := o.(*corev1.Node); ok && !c.wantedChange(node).empty() {
			c.nodeQueue.Add(node.Name)
		}
	}
}

// reconcileGroup evicts the pods that no longer belong on their Nodes, and writes the status of a group.
func (c *Controller) reconcileGroup(ctx context.Context, name string) error {
	o, exists := c.view.Group(name)
	if !exists || !c.mayAct() || !c.owner.Owns(ownerKey(name)) {
		c.recordHold(name, "")
		return nil
	}
	if o.DeletionTimestamp == nil && !slices.Contains(o.Finalizers, names.FinalizerNodeGroup) {
		return c.written(name, "finalizer", c.groups.setFinalizers(ctx, o, append(slices.Clone(o.Finalizers), names.FinalizerNodeGroup)))
	}
	a := c.view.Assignment()
	m, waiting := c.evictor.misplacedPods(o, a)
	if !c.evictor.settled(name, m, waiting) {
		return c.writeStatus(ctx, o, a, currentHold(o))
	}
	kept, failure := c.evictor.evictMisplaced(ctx, o, m)
	c.recordHold(name, kept.reason)
	if err := c.writeStatus(ctx, o, a, kept); err != nil {
		return err
	}
	if failure != nil {
		return failure
	}
	return c.finishDeletion(ctx, o, len(m.pods) > 0)
}

// ownerKey is what a group hashes to an owner by: no Node has such a name, and a group would else always share the owner of the Node of its name.
func ownerKey(group string) string { return "nodegroup/" + group }

// writeStatus writes the status of a group if it differs, and records events about faults that are new.
func (c *Controller) writeStatus(ctx context.Context, o *apps.NodeGroup, a assignment.Assignment, kept hold) error {
	state := groupState{assigned: a, node: c.cachedNode, hold: kept, windowFault: c.view.WindowFault(o.Name)}
	next := statusOf(o, state, time.Now())
	if sameStatus(o.Status, next) {
		return nil
	}
	err := c.groups.setStatus(ctx, o, next)
	if err == nil {
		about := corev1.ObjectReference{APIVersion: apps.GroupVersion().String(), Kind: apps.NodeGroupKind, Name: o.Name, UID: o.UID}
		for _, e := range statusEvents(o.Status.Conditions, next.Conditions) {
			c.warn(about, e.reason, e.message)
		}
	}
	return c.written(o.Name, "status", err)
}

// finishDeletion lets a deleted group go once no Node has its label and none of its pods is left to evict.
func (c *Controller) finishDeletion(ctx context.Context, o *apps.NodeGroup, unfinished bool) error {
	if o.DeletionTimestamp == nil || unfinished || !slices.Contains(o.Finalizers, names.FinalizerNodeGroup) {
		return nil
	}
	for _, object := range c.nodes.List() {
		if node, ok := object.(*corev1.Node); ok && node.DeletionTimestamp == nil && node.Labels[names.LabelNodeGroup] == o.Name {
			c.groupQueue.AddAfter(o.Name, staleRetry)
			return nil
		}
	}
	rest := slices.DeleteFunc(slices.Clone(o.Finalizers), func(f string) bool { return f == names.FinalizerNodeGroup })
	return c.written(o.Name, "finalizer", c.groups.setFinalizers(ctx, o, rest))
}

// written counts a write of a group. One that lost against another is tried again with the newer version.
func (c *Controller) written(group, what string, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		c.groupQueue.AddAfter(group, conflictRetry)
		return nil
	case err != nil:
		return fmt.Errorf("write the %s: %w", what, err)
	}
	c.metrics.writes.WithLabelValues(what).Inc()
	return nil
}

// cachedNode returns a Node of the cache, nil if there is none.
func (c *Controller) cachedNode(name string) *corev1.Node {
	o, exists, err := c.nodes.GetByKey(name)
	if err != nil || !exists {
		return nil
	}
	node, _ := o.(*corev1.Node)
	return node
}

// recordHold counts the groups whose evictions are held.
func (c *Controller) recordHold(group, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := c.held[group]; last != "" {
		c.metrics.held.WithLabelValues(last).Dec()
		delete(c.held, group)
	}
	if reason != "" {
		c.metrics.held.WithLabelValues(reason).Inc()
		c.held[group] = reason
	}
}
