package applications

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/applications/children"
	"github.com/frond-edge/frond/controllers/applications/render"
	"github.com/frond-edge/frond/controllers/applications/revisions"
)

const (
	workers             = 4
	retryBase, retryMax = 100 * time.Millisecond, 30 * time.Second
	requestTimeout      = 10 * time.Second
	// unreadRetry is the delay where something that the decision needs is not read yet.
	unreadRetry = 200 * time.Millisecond
	// statusPeriod is the least time between two writes of one application's status that follow from pods: these change all the time.
	statusPeriod = time.Second
)

// Rules returns the RBAC rules that cloudcore needs for this package. What templates may hold is in MadeKinds.
func Rules() []rbacv1.PolicyRule {
	rules := []rbacv1.PolicyRule{
		{APIGroups: []string{apps.Group}, Resources: []string{apps.EdgeApplicationsResource}, Verbs: []string{"get", "list", "watch", "patch"}},
		{APIGroups: []string{apps.Group}, Resources: []string{apps.EdgeApplicationsResource + "/status"}, Verbs: []string{"update"}},
		// The controller reference of an object blocks the deletion of the application.
		{APIGroups: []string{apps.Group}, Resources: []string{apps.EdgeApplicationsResource + "/finalizers"}, Verbs: []string{"update"}},
		{APIGroups: []string{"apps"}, Resources: []string{"controllerrevisions"}, Verbs: []string{"get", "list", "create", "delete"}},
	}
	return append(rules, MadeKinds()...)
}

// MadeKinds returns the rules for the kinds that templates may hold. Whoever wants others binds a role with the same verbs to cloudcore.
// Roles, RoleBindings and ServiceAccounts are not among them: an application would lend its author cloudcore's rights.
func MadeKinds() []rbacv1.PolicyRule {
	verbs := []string{"get", "list", "watch", "create", "patch", "delete"}
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps", "services"}, Verbs: verbs},
		{APIGroups: []string{"apps"}, Resources: []string{"daemonsets", "deployments", "statefulsets"}, Verbs: verbs},
		{APIGroups: []string{"batch"}, Resources: []string{"cronjobs", "jobs"}, Verbs: verbs},
	}
}

// Groups tells who is in which group of Nodes. Its methods do not block.
type Groups interface {
	// Ready reports whether groups and Nodes are read; before, the other answers mean nothing.
	Ready() bool
	// Installed reports whether the kind exists; without it nobody knows which groups there should be.
	Installed() bool
	Groups() []*apps.NodeGroup
	Members(group string) []string
	// WindowOf reports whether a group may be updated now, and when that changes.
	WindowOf(group string) (open bool, next time.Time)
	Subscribe(changed func()) (stop func())
}

// Warn records a Warning event about an object. It must not block.
type Warn func(about corev1.ObjectReference, reason, message string)

// Clients are those of the Kubernetes API.
type Clients struct {
	Kube    kubernetes.Interface
	Dynamic dynamic.Interface
	Mapper  meta.ResettableRESTMapper
	// Applications is a client of the group apps.kubeedge.io.
	Applications rest.Interface
}

// Controller carries out EdgeApplications.
type Controller struct {
	clients   Clients
	objects   cache.Cache
	groups    Groups
	owner     controllers.Ownership
	warn      Warn
	log       *zap.Logger
	children  *children.Cache
	revisions *revisions.Store
	queue     controllers.Queue[types.NamespacedName]
	source    toolscache.SharedIndexInformer
	pods      toolscache.Indexer
	nodes     toolscache.Store

	mu sync.Mutex
	// written is when the status of each application was last written; guarded by mu.
	written map[types.NamespacedName]time.Time
	// applied is what this process has seen of each object after its last application; guarded by mu.
	applied map[types.UID]appliedObject
	// groupSeen are the NodeGroups of the last look; guarded by mu.
	groupSeen map[string]*apps.NodeGroup
}

// appliedObject is what is known of an object: another version means that somebody has changed it.
type appliedObject struct {
	digest, version string
	// drifted: the fields of the application are not as it set them.
	drifted bool
	// at is when it was applied by this process, the zero time if it was not.
	at time.Time
}

// New creates a Controller. objects must serve Nodes and Pods.
func New(clients Clients, objects cache.Cache, groups Groups, owner controllers.Ownership, warn Warn, log *zap.Logger) *Controller {
	c := &Controller{
		clients: clients, objects: objects, groups: groups, owner: owner, warn: warn, log: log,
		written: map[types.NamespacedName]time.Time{}, applied: map[types.UID]appliedObject{}, groupSeen: map[string]*apps.NodeGroup{},
	}
	c.revisions = revisions.New(clients.Kube)
	c.children = children.New(clients.Dynamic, clients.Mapper, func(app types.NamespacedName) { c.queue.Add(app) }, c.forgetObject)
	return c
}

// Start carries out the applications until ctx ends and then returns nil. The caller must start the cache and the groups.
func (c *Controller) Start(ctx context.Context) error {
	c.queue = controllers.NewQueue[types.NamespacedName](retryBase, retryMax)
	defer c.queue.ShutDown()
	if err := c.prepare(ctx); err != nil {
		return controllers.IgnoreCanceled(ctx, err)
	}
	var g errgroup.Group
	c.children.Start(ctx, &g)
	g.Go(func() error {
		c.source.RunWithContext(ctx)
		return nil
	})
	defer c.groups.Subscribe(c.onGroupsChanged)()
	g.Go(func() error {
		c.watchOwnership(ctx)
		return nil
	})
	g.Go(func() error {
		controllers.ProcessQueue(ctx, c.queue, workers, c.reconcile)
		return nil
	})
	return g.Wait()
}

// prepare makes the caches that the workers read.
func (c *Controller) prepare(ctx context.Context) error {
	var err error
	if c.nodes, err = controllers.StoreOf(ctx, c.objects, &corev1.Node{}); err != nil {
		return err
	}
	if c.pods, err = podIndexer(ctx, c.objects); err != nil {
		return err
	}
	watch := toolscache.NewListWatchFromClient(c.clients.Applications, apps.EdgeApplicationsResource, metav1.NamespaceAll, fields.Everything())
	c.source = toolscache.NewSharedIndexInformer(watch, &apps.EdgeApplication{}, 0, toolscache.Indexers{})
	if err := c.source.SetTransform(stripFields); err != nil {
		return fmt.Errorf("follow applications: %w", err)
	}
	if err := c.source.SetWatchErrorHandlerWithContext(c.onWatchError); err != nil {
		return fmt.Errorf("follow applications: %w", err)
	}
	_, err = c.source.AddEventHandler(controllers.TypedHandler(c.enqueue, func(o *apps.EdgeApplication) {
		c.revisions.Forget(o.UID)
		c.enqueue(o)
	}))
	return err
}

func stripFields(object any) (any, error) {
	if o, ok := object.(*apps.EdgeApplication); ok {
		o.ManagedFields = nil
	}
	return object, nil
}

// onWatchError is quiet where the kind does not exist: then there are no applications.
func (c *Controller) onWatchError(ctx context.Context, r *toolscache.Reflector, err error) {
	if !apierrors.IsNotFound(err) {
		toolscache.DefaultWatchErrorHandler(ctx, r, err)
	}
}

func (c *Controller) enqueue(o *apps.EdgeApplication) { c.queue.Add(keyOf(o)) }

func keyOf(o *apps.EdgeApplication) types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
}

// watchOwnership enqueues all applications when this replica comes to own other ones.
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

// onGroupsChanged enqueues all applications when what they read of groups has changed: their number, names, labels and annotations. Members and readiness
// come with the pods.
func (c *Controller) onGroupsChanged() {
	seen := map[string]*apps.NodeGroup{}
	changed := false
	c.mu.Lock()
	for _, g := range c.groups.Groups() {
		seen[g.Name] = g
		before := c.groupSeen[g.Name]
		changed = changed || before == nil || !sameMetadata(before, g)
	}
	changed = changed || len(seen) != len(c.groupSeen)
	c.groupSeen = seen
	c.mu.Unlock()
	if changed || c.groups.Ready() && len(seen) == 0 {
		c.enqueueAll()
	}
}

func (c *Controller) forgetObject(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.applied, uid)
}

func (c *Controller) enqueueAll() {
	for _, o := range c.source.GetStore().List() {
		if app, ok := o.(*apps.EdgeApplication); ok {
			c.enqueue(app)
		}
	}
}

// ownerKey is what an application hashes to an owner by; no Node has such a name.
func ownerKey(key types.NamespacedName) string { return "edgeapplication/" + key.String() }

// reconcile carries out one application.
func (c *Controller) reconcile(ctx context.Context, key types.NamespacedName) error {
	found, exists, err := c.source.GetStore().GetByKey(key.String())
	app, ok := found.(*apps.EdgeApplication)
	if err != nil || !exists || !ok {
		c.mu.Lock()
		delete(c.written, key)
		c.mu.Unlock()
		return err // its objects go with it: it is their controller
	}
	if app.DeletionTimestamp != nil || !c.owner.Owns(ownerKey(key)) {
		return nil
	}
	if !c.groups.Ready() {
		c.queue.AddAfter(key, unreadRetry)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 6*requestTimeout)
	defer cancel()
	next, err := carryOut(ctx, c, app)
	switch {
	case errors.Is(err, children.ErrUnread), errors.Is(err, errStale):
		c.queue.AddAfter(key, unreadRetry)
		return nil
	case apierrors.IsConflict(err):
		c.queue.AddAfter(key, unreadRetry) // the cache has the other write by then
		return nil
	case err != nil:
		if ctx.Err() == nil {
			c.log.Warn("application not carried out, trying again", zap.Stringer("application", key), zap.Error(err))
		}
		return err
	case next > 0:
		c.queue.AddAfter(key, next)
	}
	return nil
}

// offlinePods counts the pods of an object on Nodes of the target that have no link.
func (c *Controller) offlinePods(target render.Target, id render.ID) int {
	n := 0
	for _, node := range c.groups.Members(target.Group) {
		if !c.isReady(node) {
			n += countPodsOn(c.pods, node, id)
		}
	}
	return n
}

// isReady reports whether Kubernetes calls a Node ready.
func (c *Controller) isReady(name string) bool {
	found, exists, err := c.nodes.GetByKey(name)
	node, ok := found.(*corev1.Node)
	return err == nil && exists && ok && slices.ContainsFunc(node.Status.Conditions, func(x corev1.NodeCondition) bool {
		return x.Type == corev1.NodeReady && x.Status == corev1.ConditionTrue
	})
}
