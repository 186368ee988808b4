package nodehealth

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/controllers/podcache"
)

// lostNodeRepeat is the delay before a node is asked once more: kube-controller-manager checks its nodes every 5 s, and
// may mark the pods of one after the first answer.
const lostNodeRepeat = 10 * time.Second

// lookupTimeout bounds a read of the cache, which blocks only until it has been filled.
const lookupTimeout = 2 * time.Second

// markRepeatMax is the longest delay before a node is asked again because of a pod that stays marked, whatever its node reports.
const markRepeatMax = 10 * time.Minute

// LostNodeResync asks nodes that Kubernetes had marked lost to report everything again. While cloudcores or the hub
// were unavailable, a Lease may have expired. Kubernetes then marks the Node unknown and its pods not ready, although
// the gateway's own link was never interrupted: without a request the gateway would report nothing new before its hourly report.
//
// A node is asked as long as it is unknown or one of its pods is marked. Both are read from Kubernetes, so a replica that starts, or that takes the node
// over, goes on where another one stopped.
type LostNodeResync struct {
	objects        cache.Cache
	owns           func(node string) bool
	requestReports func(node string) error
	repeatAfter    time.Duration
	queue          workqueue.TypedDelayingInterface[string]
	marked         *markedPods
	// pauses are the delays between requests because of marked pods, by node.
	pauses workqueue.TypedRateLimiter[string]
	log    *zap.Logger
}

// NewLostNodeResync creates the part. owns reports whether this replica owns a node; ask requests all reports of one and
// must not block.
func NewLostNodeResync(objects cache.Cache, owns func(node string) bool, ask func(node string) error, log *zap.Logger) *LostNodeResync {
	return &LostNodeResync{
		objects: objects, owns: owns, requestReports: ask, repeatAfter: lostNodeRepeat, queue: workqueue.NewTypedDelayingQueue[string](), log: log,
		marked: newMarkedPods(), pauses: workqueue.NewTypedItemExponentialFailureRateLimiter[string](lostNodeRepeat, markRepeatMax),
	}
}

// Start sends the requests until ctx ends and then returns nil. The caller must start the cache.
func (u *LostNodeResync) Start(ctx context.Context) error {
	informer, err := u.objects.GetInformer(ctx, &corev1.Node{})
	if err != nil {
		return fmt.Errorf("follow nodes: %w", err)
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if node := o.(*corev1.Node); readyStatus(node) == corev1.ConditionUnknown {
				u.queue.Add(node.Name)
			}
		},
		UpdateFunc: func(before, after any) {
			node := after.(*corev1.Node)
			now, later := resyncNeeded(readyStatus(before.(*corev1.Node)), readyStatus(node))
			if now {
				u.queue.Add(node.Name)
			}
			if later {
				u.queue.AddAfter(node.Name, u.repeatAfter)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("follow nodes: %w", err)
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }() // fails only where the informer is gone
	stopPods, err := podcache.Follow(ctx, u.objects, func(pod *podcache.Pod) {
		if u.marked.record(pod) {
			u.queue.Add(pod.Node())
		}
	}, u.marked.remove)
	if err != nil {
		return err
	}
	defer stopPods()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		<-gctx.Done()
		u.queue.ShutDown()
		return nil
	})
	g.Go(func() error {
		for {
			node, end := u.queue.Get()
			if end {
				return nil
			}
			u.resyncNode(gctx, node)
			u.queue.Done(node)
		}
	})
	return g.Wait()
}

// resyncNeeded reports whether a node is asked after its readiness has changed from was to is: when Kubernetes loses
// the node, as long as it is lost, and when it is found again, then twice.
func resyncNeeded(was, is corev1.ConditionStatus) (now, later bool) {
	const lost = corev1.ConditionUnknown
	return was == lost || is == lost, was == lost && is != lost
}

// resyncNode asks a node to report, and checks again as long as Kubernetes does not know its readiness or shows marked pods.
func (u *LostNodeResync) resyncNode(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	node := &corev1.Node{}
	if err := u.objects.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return // deleted
	}
	if u.owns(name) { // otherwise its owner asks, and this replica looks again in case that it becomes the owner
		if err := u.requestReports(name); err != nil {
			u.log.Warn("node not asked to report again", zap.String("node", name), zap.Error(err))
		}
	}
	switch {
	case readyStatus(node) == corev1.ConditionUnknown:
		u.queue.AddAfter(name, u.repeatAfter)
	case u.marked.of(name):
		u.queue.AddAfter(name, u.pauses.When(name))
	default:
		u.pauses.Forget(name)
	}
}

// readyStatus returns a node's readiness in Kubernetes; "" if it was never set.
func readyStatus(node *corev1.Node) corev1.ConditionStatus {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}
