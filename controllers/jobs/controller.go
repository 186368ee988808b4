package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/jobs"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/operations"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/jobs/plan"
	"github.com/frond-edge/frond/controllers/jobs/taskstore"
)

const (
	workers             = 2
	retryBase, retryMax = 100 * time.Millisecond, 30 * time.Second
	requestTimeout      = 10 * time.Second
	// unreadRetry is the delay where something that the decision needs is not read yet.
	unreadRetry = 200 * time.Millisecond
	// conflictRetry is the delay after a write that lost against another one; the cache has it by then.
	conflictRetry = 200 * time.Millisecond
	// statusPeriod is the least time between two writes of a job's status, nodesPerSecond what is added for large ones: each writes the whole object.
	statusPeriod   = time.Second
	nodesPerSecond = 200
	// windowRetry is the delay where the maintenance windows are not known.
	windowRetry = 5 * time.Second
)

// Rules returns the RBAC rules that cloudcore needs for this package and those below.
func Rules() []rbacv1.PolicyRule {
	return append(taskstore.Rules(),
		rbacv1.PolicyRule{APIGroups: []string{operations.Group}, Resources: []string{operations.ImagePrePullJobsResource}, Verbs: []string{"get", "list", "watch", "patch"}},
		rbacv1.PolicyRule{APIGroups: []string{operations.Group}, Resources: []string{operations.ImagePrePullJobsResource + "/status"}, Verbs: []string{"update"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch"}},
	)
}

// Groups tells who is in which group of Nodes, and when work may begin there. Its methods do not block.
type Groups interface {
	// Ready reports whether groups and Nodes are read; before, the other answers mean nothing.
	Ready() bool
	GroupOf(node string) (name string, member bool)
	WindowOf(group string) (open bool, next time.Time)
}

// Warn records a Warning event about an object. It must not block.
type Warn func(about corev1.ObjectReference, reason, message string)

// Controller carries out jobs.
type Controller struct {
	client  rest.Interface
	tasks   *taskstore.Store
	objects cache.Cache
	groups  Groups
	owner   controllers.Ownership
	warn    Warn
	log     *zap.Logger
	created prometheus.Counter
	source  toolscache.SharedIndexInformer
	queue   controllers.Queue[string]
	// nodes is the informer's store, which has its own lock. It is set before the workers start, as started is.
	nodes   toolscache.Store
	started time.Time

	mu sync.Mutex
	// links is what was last seen of each Node; guarded by mu.
	links map[string]plan.Node
	// written is when the status of each job was last written; guarded by mu.
	written map[string]time.Time
}

// New creates a Controller. objects must serve Nodes; the caller starts it and tasks.
func New(config *rest.Config, tasks *taskstore.Store, objects cache.Cache, groups Groups, owner controllers.Ownership, warn Warn, metrics prometheus.Registerer,
	log *zap.Logger,
) (*Controller, error) {
	client, err := taskstore.NewClient(config, operations.GroupVersion(), operations.AddToScheme)
	if err != nil {
		return nil, err
	}
	source, err := taskstore.NewInformer(client, operations.ImagePrePullJobsResource, &operations.ImagePrePullJob{}, toolscache.Indexers{})
	if err != nil {
		return nil, err
	}
	c := &Controller{
		client: client, tasks: tasks, objects: objects, groups: groups, owner: owner, warn: warn, log: log, source: source,
		queue: controllers.NewQueue[string](retryBase, retryMax), links: map[string]plan.Node{}, written: map[string]time.Time{},
		created: promauto.With(metrics).NewCounter(prometheus.CounterOpts{Name: "frond_jobs_tasks_created_total", Help: "Steps of jobs that this replica has handed out to gateways."}),
	}
	enqueue := func(o *operations.ImagePrePullJob) { c.queue.Add(o.Name) }
	if _, err := source.AddEventHandler(controllers.TypedHandler(enqueue, enqueue)); err != nil {
		return nil, fmt.Errorf("follow jobs: %w", err)
	}
	return c, tasks.Follow(func(task *jobs.NodeTask) { c.queue.Add(task.Spec.Job.Name) })
}

// Start carries out the jobs until ctx ends and then returns nil.
func (c *Controller) Start(ctx context.Context) error {
	defer c.queue.ShutDown()
	nodes, err := c.objects.GetInformer(ctx, &corev1.Node{})
	if err != nil {
		return controllers.IgnoreCanceled(ctx, fmt.Errorf("follow nodes: %w", err))
	}
	// A cache that has not been started yet does not wait by itself, and a Node that is not read is none that does not exist.
	if !toolscache.WaitForCacheSync(ctx.Done(), nodes.HasSynced) {
		return nil
	}
	c.started = time.Now()
	if c.nodes, err = controllers.StoreOf(ctx, c.objects, &corev1.Node{}); err != nil {
		return controllers.IgnoreCanceled(ctx, err)
	}
	stop, err := controllers.Follow(ctx, c.objects, &corev1.Node{}, c.onNodeChanged, c.onNodeDeleted)
	defer stop()
	if err != nil {
		return controllers.IgnoreCanceled(ctx, err)
	}
	var g errgroup.Group
	g.Go(func() error {
		c.source.RunWithContext(ctx)
		return nil
	})
	g.Go(func() error {
		c.watchOwnership(ctx)
		return nil
	})
	g.Go(func() error {
		controllers.ProcessQueue(ctx, c.queue, workers, func(ctx context.Context, name string) error {
			err := c.reconcile(ctx, name)
			if err != nil && ctx.Err() == nil {
				c.log.Warn("job not carried out, trying again", zap.String("job", name), zap.Error(err))
			}
			return err
		})
		return nil
	})
	return g.Wait()
}

// watchOwnership enqueues all jobs when this replica comes to own other ones.
func (c *Controller) watchOwnership(ctx context.Context) {
	for {
		changed := c.owner.Changed() // read first, so that no change is missed in between
		c.enqueueAll(0)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (c *Controller) enqueueAll(after time.Duration) {
	for _, name := range c.source.GetStore().ListKeys() {
		c.queue.AddAfter(name, after)
	}
}

// onNodeChanged enqueues the jobs when a gateway comes, or its link does.
func (c *Controller) onNodeChanged(o *corev1.Node) {
	node := nodeOf(o)
	c.mu.Lock()
	last, known := c.links[o.Name]
	c.links[o.Name] = node
	c.mu.Unlock()
	if !known || last != node {
		c.enqueueAll(statusPeriod) // many change at once after a fault of the hub
	}
}

func (c *Controller) onNodeDeleted(o *corev1.Node) {
	c.mu.Lock()
	delete(c.links, o.Name)
	c.mu.Unlock()
	c.enqueueAll(statusPeriod)
}

// nodeOf reads a Node.
func nodeOf(o *corev1.Node) plan.Node {
	_, gateway := o.Labels[names.LabelEdge]
	node := plan.Node{Gateway: gateway}
	for _, condition := range o.Status.Conditions {
		if condition.Type == names.ConditionConnected {
			node.Connected, node.Since = condition.Status == corev1.ConditionTrue, condition.LastTransitionTime.Time
		}
	}
	return node
}

// ownerKey is what a job hashes to an owner by: no Node has such a name.
func ownerKey(name string) string { return "job/" + name }

// reconcile brings a job one step further.
func (c *Controller) reconcile(ctx context.Context, name string) error {
	if !c.owner.Owns(ownerKey(name)) {
		return nil
	}
	if !c.source.HasSynced() || !c.tasks.Synced() {
		c.log.Debug("job waits for the caches", zap.String("job", name), zap.Bool("jobs", c.source.HasSynced()), zap.Bool("tasks", c.tasks.Synced()))
		c.queue.AddAfter(name, unreadRetry)
		return nil
	}
	tasks, err := c.tasks.OfJob(operations.ImagePrePullJobKind, name)
	if err != nil {
		return err
	}
	job := c.cached(name)
	if job == nil || job.DeletionTimestamp != nil {
		if err := c.removeOrphans(ctx, name, tasks); err != nil || job == nil {
			return err
		}
		return c.removeFinalizer(ctx, job)
	}
	own, orphans := map[string]*jobs.NodeTask{}, []*jobs.NodeTask(nil)
	for _, task := range tasks {
		if task.Spec.Job.UID == string(job.UID) {
			own[task.Spec.NodeName] = task
		} else {
			orphans = append(orphans, task)
		}
	}
	if len(orphans) > 0 {
		if err := c.removeOrphans(ctx, name, orphans); err != nil {
			return err
		}
	}
	return c.carryOut(ctx, job, own)
}

func (c *Controller) cached(name string) *operations.ImagePrePullJob {
	o, exists, err := c.source.GetStore().GetByKey(name)
	if job, ok := o.(*operations.ImagePrePullJob); ok && exists && err == nil {
		return job
	}
	return nil
}

// carryOut stores the next status of a job, and then creates and deletes tasks.
func (c *Controller) carryOut(ctx context.Context, job *operations.ImagePrePullJob, tasks map[string]*jobs.NodeTask) error {
	now := time.Now()
	parsed := plan.Parse(job)
	next := plan.Decide(plan.Input{
		Now: now, Started: c.started, Job: parsed, Status: job.Status, Nodes: c.gateways, Node: c.node, Window: c.window, Tasks: tasks,
	})
	if !next.Next.IsZero() {
		c.queue.AddAfter(job.Name, max(next.Next.Sub(now), statusPeriod))
	}
	if changed := !apiequality.Semantic.DeepEqual(job.Status, next.Status); changed || len(next.Create) > 0 {
		if wait := c.statusDelay(job, now); wait > 0 {
			c.queue.AddAfter(job.Name, wait)
			return nil
		}
		err := c.writeStatus(ctx, job, next.Status)
		if apierrors.IsConflict(err) {
			c.log.Debug("status of a job not written, it has changed meanwhile", zap.String("job", job.Name), zap.Error(err))
			c.queue.AddAfter(job.Name, conflictRetry)
			return nil
		}
		if apierrors.IsNotFound(err) {
			return nil // it was deleted
		}
		if err != nil {
			return fmt.Errorf("status of the job: %w", err)
		}
		c.recordWrite(job, next.Status, now)
	}
	for _, node := range next.Create {
		if err := c.tasks.Create(ctx, newTask(job, node)); err != nil {
			return err
		}
		c.created.Inc()
	}
	for _, task := range next.Delete {
		if err := c.tasks.Delete(ctx, task); err != nil {
			return err
		}
	}
	return nil
}

// statusDelay returns how long the next write of a job's status has to wait.
func (c *Controller) statusDelay(job *operations.ImagePrePullJob, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	period := statusPeriod + time.Duration(len(job.Status.NodeStatus)/nodesPerSecond)*time.Second
	return c.written[job.Name].Add(period).Sub(now)
}

// recordWrite remembers a write, and raises an Event about a job that has failed.
func (c *Controller) recordWrite(job *operations.ImagePrePullJob, status operations.ImagePrePullJobStatus, now time.Time) {
	c.mu.Lock()
	c.written[job.Name] = now
	c.mu.Unlock()
	if status.Phase == operations.JobFailure && job.Status.Phase != operations.JobFailure {
		c.warn(corev1.ObjectReference{
			APIVersion: operations.GroupVersion().String(), Kind: operations.ImagePrePullJobKind, Name: job.Name, UID: job.UID,
		}, names.EventJobFailed, status.Reason)
	}
}

// writeStatus replaces the status of the version of a job that was read, also where nothing differs: the apiserver then says whether that version is
// the last.
func (c *Controller) writeStatus(ctx context.Context, job *operations.ImagePrePullJob, status operations.ImagePrePullJobStatus) error {
	next := job.DeepCopy()
	next.Status = status
	next.TypeMeta = metav1.TypeMeta{APIVersion: operations.GroupVersion().String(), Kind: operations.ImagePrePullJobKind}
	body, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return c.client.Put().Resource(operations.ImagePrePullJobsResource).Name(job.Name).SubResource("status").Param("fieldManager", names.ManagerCloudcore).
		SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(ctx).Error()
}

// removeOrphans deletes tasks whose job is gone, also for the apiserver.
func (c *Controller) removeOrphans(ctx context.Context, name string, tasks []*jobs.NodeTask) error {
	c.mu.Lock()
	delete(c.written, name)
	c.mu.Unlock()
	if len(tasks) == 0 {
		return nil
	}
	rctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	job := &operations.ImagePrePullJob{}
	if err := c.client.Get().Resource(operations.ImagePrePullJobsResource).Name(name).Do(rctx).Into(job); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read job: %w", err)
	}
	for _, task := range tasks {
		if task.Spec.Job.UID == string(job.UID) && job.DeletionTimestamp == nil {
			continue // the cache of jobs is behind
		}
		if err := c.tasks.Delete(ctx, task); err != nil {
			return err
		}
	}
	return nil
}

// gateways returns the names of the gateways that a selector selects.
func (c *Controller) gateways(selector labels.Selector) (found []string) {
	for _, o := range c.nodes.List() {
		if node, ok := o.(*corev1.Node); ok && nodeOf(node).Gateway && selector.Matches(labels.Set(node.Labels)) {
			found = append(found, node.Name)
		}
	}
	return found
}

func (c *Controller) node(name string) (plan.Node, bool) {
	o, exists, err := c.nodes.GetByKey(name)
	node, ok := o.(*corev1.Node)
	if err != nil || !exists || !ok {
		return plan.Node{}, false
	}
	return nodeOf(node), true
}

// window reports whether the maintenance windows of a node's group are open.
func (c *Controller) window(node string) (open bool, next time.Time) {
	if !c.groups.Ready() {
		return false, time.Now().Add(windowRetry)
	}
	group, member := c.groups.GroupOf(node)
	if !member {
		return true, time.Time{}
	}
	return c.groups.WindowOf(group)
}
