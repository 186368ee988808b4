package evictions

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/podcache"
)

const (
	// workers is one, so that no two evictions use the same token of the limiter.
	workers             = 1
	retryBase, retryMax = 100 * time.Millisecond, 10 * time.Second
	deleteTimeout       = 10 * time.Second
	// recheckAfter is the delay before a pod on a node that is no gateway, or not this replica's, is checked again: the
	// node may become one, or the replica its owner. Protected namespaces hold few pods, so this costs little.
	recheckAfter = 10 * time.Second
	// evictBurst pods of a node are evicted at once, then one each evictEvery. The controller of an evicted pod creates
	// another, which the scheduler may bind to the same gateway again. A pod that waits for its eviction is not
	// published meanwhile.
	evictBurst, evictEvery = 5, 30 * time.Second
)

// Rules returns the RBAC rules that cloudcore needs for this package, besides what Delete needs.
func Rules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods", "nodes"}, Verbs: []string{"list", "watch"}}}
}

// Delete deletes exactly this pod, by its UID, without a grace period.
type Delete func(ctx context.Context, pod *corev1.Pod) error

// Evictor deletes pods of protected namespaces from the gateways that this replica owns.
type Evictor struct {
	protected controllers.ProtectedNamespaces
	objects   cache.Cache
	owns      func(node string) bool
	deletePod Delete
	warn      func(node, reason, message string)
	evicted   prometheus.Counter
	log       *zap.Logger
	queue     controllers.Queue[client.ObjectKey]
	// limiters are the rate limiters by node, of the nodes that a pod was evicted from. Only the worker uses them.
	limiters map[string]*rate.Limiter
}

// New creates an Evictor. objects must serve Pods and Nodes; warn records an event on a node and must not block;
// metrics may be nil.
func New(protected controllers.ProtectedNamespaces, objects cache.Cache, owns func(node string) bool, remove Delete,
	warn func(node, reason, message string), metrics prometheus.Registerer, log *zap.Logger,
) *Evictor {
	return &Evictor{
		protected: protected, objects: objects, owns: owns, deletePod: remove, warn: warn, log: log, limiters: map[string]*rate.Limiter{},
		evicted: promauto.With(metrics).NewCounter(prometheus.CounterOpts{
			Name: "frond_protected_pods_evicted_total", Help: "Pods of protected namespaces that were bound to a gateway and have been deleted.",
		}),
	}
}

// Start evicts until ctx ends and then returns nil. The caller must start the cache.
func (e *Evictor) Start(ctx context.Context) error {
	e.queue = controllers.NewQueue[client.ObjectKey](retryBase, retryMax)
	defer e.queue.ShutDown()
	stop, err := podcache.Follow(ctx, e.objects, func(pod *podcache.Pod) {
		if e.protected.Contains(pod.Namespace()) && pod.Node() != "" {
			e.queue.Add(client.ObjectKey{Namespace: pod.Namespace(), Name: pod.Name()})
		}
	}, nil)
	if err != nil {
		return controllers.IgnoreCanceled(ctx, err)
	}
	defer stop()
	controllers.ProcessQueue(ctx, e.queue, workers, e.reconcilePod)
	return nil
}

// reconcilePod evicts one pod if it must go, and enqueues it again if it may have to go later.
func (e *Evictor) reconcilePod(ctx context.Context, key client.ObjectKey) error {
	pod := &corev1.Pod{}
	if err := e.objects.Get(ctx, key, pod); err != nil {
		return client.IgnoreNotFound(err)
	}
	if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	node := &corev1.Node{}
	switch err := e.objects.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, node); {
	case apierrors.IsNotFound(err):
		e.queue.AddAfter(key, recheckAfter)
		return nil
	case err != nil:
		return fmt.Errorf("read node %s: %w", pod.Spec.NodeName, err)
	}
	if _, edge := node.Labels[names.LabelEdge]; !edge || !e.owns(node.Name) {
		e.queue.AddAfter(key, recheckAfter)
		return nil
	}
	limiter := e.limiterOf(node.Name)
	if pod.DeletionTimestamp == nil && limiter.Tokens() < 1 {
		e.queue.AddAfter(key, evictEvery)
		return nil
	}
	return e.evictPod(ctx, pod, limiter)
}

func (e *Evictor) limiterOf(node string) *rate.Limiter {
	limiter := e.limiters[node]
	if limiter == nil {
		limiter = rate.NewLimiter(rate.Every(evictEvery), evictBurst)
		e.limiters[node] = limiter
	}
	return limiter
}

// evictPod deletes a pod. It spends a token only for a pod that existed and was not being deleted: no replacement comes for any other.
func (e *Evictor) evictPod(ctx context.Context, pod *corev1.Pod, limiter *rate.Limiter) error {
	ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	node, name := pod.Spec.NodeName, pod.Namespace+"/"+pod.Name
	switch err := e.deletePod(ctx, pod); {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // it is gone, or another pod has its name
		return nil
	case err != nil:
		e.log.Warn("pod of a protected namespace not evicted, trying again", zap.String("node", node), zap.String("pod", name), zap.Error(err))
		return fmt.Errorf("delete pod %s: %w", name, err)
	}
	if pod.DeletionTimestamp == nil {
		limiter.Allow()
	}
	e.evicted.Inc()
	e.log.Warn("pod of a protected namespace evicted from a gateway", zap.String("node", node), zap.String("pod", name))
	e.warn(node, names.EventProtectedPodEvicted, fmt.Sprintf("Pod %s was bound to this gateway and has been deleted: pods of namespace %s must not run on gateways. "+
		"Give its workload the required node affinity %s DoesNotExist.", name, pod.Namespace, names.LabelEdge))
	return nil
}
