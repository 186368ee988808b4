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
)

// lostNodeRepeat is the delay before a node is asked once more: kube-controller-manager checks its nodes every 5 s, and
// may mark the pods of one after the first answer.
const lostNodeRepeat = 10 * time.Second

// lookupTimeout bounds a read of the cache, which blocks only until it has been filled.
const lookupTimeout = 2 * time.Second

// LostNodeResync asks nodes that Kubernetes had marked lost to report everything again. While cloudcores or the hub
// were unavailable, a Lease may have expired. Kubernetes then marks the Node unknown and its pods not ready, although
// the gateway's own link was never interrupted: without a request the gateway would report nothing new before its hourly report.
type LostNodeResync struct {
	objects        cache.Cache
	owns           func(node string) bool
	requestReports func(node string) error
	repeatAfter    time.Duration
	queue          workqueue.TypedDelayingInterface[string]
	log            *zap.Logger
}

// NewLostNodeResync creates the part. owns reports whether this replica owns a node; ask requests all reports of one and
// must not block.
func NewLostNodeResync(objects cache.Cache, owns func(node string) bool, ask func(node string) error, log *zap.Logger) *LostNodeResync {
	return &LostNodeResync{
		objects: objects, owns: owns, requestReports: ask, repeatAfter: lostNodeRepeat, queue: workqueue.NewTypedDelayingQueue[string](), log: log,
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

// resyncNode asks a node to report, and checks again as long as Kubernetes does not know its readiness.
func (u *LostNodeResync) resyncNode(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	node := &corev1.Node{}
	if err := u.objects.Get(ctx, client.ObjectKey{Name: name}, node); err != nil || !u.owns(name) {
		return // its owner checks it
	}
	if err := u.requestReports(name); err != nil {
		u.log.Warn("node not asked to report again", zap.String("node", name), zap.Error(err))
	}
	if readyStatus(node) == corev1.ConditionUnknown {
		u.queue.AddAfter(name, u.repeatAfter)
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
