package autonomy

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/podcache"
)

const (
	// workers is the number of concurrent API writes.
	workers = 8
	// A refused write is retried soon, and during an outage of the apiserver not too often.
	retryBase, retryMax = 100 * time.Millisecond, 10 * time.Second
	// settleTime is how long Kubernetes may take to see that a pod tolerates a taint without limit: milliseconds, or
	// seconds if it is busy.
	settleTime = 10 * time.Second
	// writeTimeout bounds one write.
	writeTimeout = 10 * time.Second
)

// Rules returns the RBAC rules that cloudcore needs for this package.
func Rules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch", "patch"}},
	}
}

// TolerationController maintains the tolerations of the pods on annotated Nodes, and on Nodes of annotated NodeGroups.
type TolerationController struct {
	kube     kubernetes.Interface
	objects  cache.Cache
	groups   *NodeGroups
	owner    controllers.Ownership
	faults   *faultReporter
	onChange func(node string)
	writes   prometheus.Counter
	log      *zap.Logger
	queue    controllers.Queue[types.NamespacedName]

	mu sync.Mutex
	// pods and nodes are the informers' stores, which have their own locks; guarded by mu, nil before Start.
	pods, nodes toolscache.Store
	// choices is the last choice for each Node, without the Nodes that have none; guarded by mu.
	choices map[string]choice
	// waitingSince is when each pod began to wait for settleTime; guarded by mu.
	waitingSince map[types.NamespacedName]time.Time
}

// New creates a TolerationController. objects must serve Nodes and Pods; groups is the controller's own, which fills it.
// changed is called with each node for which the result of groups.Lookup has changed, and must not block; metrics may be nil.
func New(kube kubernetes.Interface, objects cache.Cache, groups *NodeGroups, owner controllers.Ownership, warn Warn, changed func(node string),
	metrics prometheus.Registerer, log *zap.Logger,
) *TolerationController {
	return &TolerationController{
		kube: kube, objects: objects, groups: groups, owner: owner, faults: newFaultReporter(owner.Owns, warn, log), onChange: changed, log: log,
		choices: map[string]choice{}, waitingSince: map[types.NamespacedName]time.Time{},
		writes: promauto.With(metrics).NewCounter(prometheus.CounterOpts{
			Name: "frond_autonomy_writes_total", Help: "Pods whose tolerations were changed for the sake of their node's autonomy.",
		}),
	}
}

// Start maintains the tolerations until ctx ends and then returns nil. The caller must start the cache.
func (k *TolerationController) Start(ctx context.Context) error {
	k.queue = controllers.NewQueue[types.NamespacedName](retryBase, retryMax)
	defer k.queue.ShutDown()
	stop, err := k.startInformers(ctx)
	defer stop()
	if err != nil {
		return controllers.IgnoreCanceled(ctx, err)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		k.watchOwnership(gctx)
		return nil
	})
	g.Go(func() error {
		k.watchGroups(gctx)
		return nil
	})
	controllers.ProcessQueue(gctx, k.queue, workers, k.processPod)
	return controllers.IgnoreCanceled(ctx, g.Wait())
}

// startInformers subscribes to Nodes and Pods. The returned function ends the subscriptions and is never nil.
func (k *TolerationController) startInformers(ctx context.Context) (stop func(), err error) {
	stop = func() {}
	nodes, err := controllers.StoreOf(ctx, k.objects, &corev1.Node{})
	if err != nil {
		return stop, err
	}
	pods, err := controllers.StoreOf(ctx, k.objects, &corev1.Pod{})
	if err != nil {
		return stop, err
	}
	k.mu.Lock()
	k.nodes, k.pods = nodes, pods
	k.mu.Unlock()
	stopNodes, err := controllers.Follow(ctx, k.objects, &corev1.Node{}, k.onNodeChanged, k.onNodeDeleted)
	if err != nil {
		return stop, err
	}
	stopPods, err := podcache.Follow(ctx, k.objects, k.enqueuePod, func(p *podcache.Pod) { k.stopWaiting(podKey(p)) })
	return func() {
		stopNodes()
		stopPods()
	}, err
}

func (k *TolerationController) onNodeChanged(node *corev1.Node) {
	_, err := parseAnnotation(node.Annotations)
	k.faults.recordFault(nodeReference(node.Name), err)
	k.refreshChoices(node.Name)
}

func (k *TolerationController) onNodeDeleted(node *corev1.Node) {
	k.faults.recordFault(nodeReference(node.Name), nil)
	k.refreshChoices(node.Name)
}

// refreshChoices computes the choices of nodes again, and enqueues the pods of those whose choice has changed.
func (k *TolerationController) refreshChoices(names ...string) {
	changed := map[string]bool{}
	k.mu.Lock()
	for _, name := range names {
		var now choice
		if o, exists, err := k.nodes.GetByKey(name); err == nil && exists {
			known := false
			if now, known = k.groups.chooseForNode(o.(*corev1.Node)); !known {
				continue // onGroupsLoaded computes it again
			}
		}
		if changed[name] = !now.sameSource(k.choices[name]); now.value == "" {
			delete(k.choices, name)
		} else {
			k.choices[name] = now
		}
	}
	k.mu.Unlock()
	maps.DeleteFunc(changed, func(_ string, is bool) bool { return !is })
	if len(changed) == 0 {
		return
	}
	k.enqueuePods(func(name string) bool { return changed[name] })
	for name := range changed {
		k.onChange(name)
	}
}

// enqueuePods enqueues the pods of the nodes that match. It scans all pods of the cluster, which is rare: after a
// changed annotation, and when replicas come or go.
func (k *TolerationController) enqueuePods(match func(node string) bool) {
	for _, o := range k.pods.List() {
		if pod, ok := podcache.Of(o); ok && match(pod.Node()) {
			k.enqueuePod(pod)
		}
	}
}

// enqueuePod enqueues a pod that may need a change. The search for a label is that for an annotation: both are texts of the pod.
func (k *TolerationController) enqueuePod(pod *podcache.Pod) {
	k.mu.Lock()
	asked := !k.choices[pod.Node()].isDefault()
	k.mu.Unlock()
	if pod.Node() != "" && (asked || pod.MayHaveAnnotation(names.AnnotationToleratedBefore) || pod.MayHaveAnnotation(names.LabelOfflineAutonomy)) {
		k.queue.Add(podKey(pod))
	}
}

func podKey(pod *podcache.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace(), Name: pod.Name()}
}

// watchOwnership enqueues all pods and reports all faults again when this replica comes to own nodes.
func (k *TolerationController) watchOwnership(ctx context.Context) {
	for {
		changed := k.owner.Changed() // read first, so that no change is missed in between
		k.enqueuePods(func(string) bool { return true })
		k.faults.reportFaults()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (k *TolerationController) processPod(ctx context.Context, key types.NamespacedName) error {
	err := k.reconcilePod(ctx, key)
	if err != nil && ctx.Err() == nil {
		k.log.Warn("tolerations not kept, trying again", zap.Stringer("pod", key), zap.Error(err))
	}
	return err
}

// wantedStay returns how long the pods of a node stay, whether that is known, and whether Kubernetes considers the node lost.
func (k *TolerationController) wantedStay(name string) (want stay, gone, known bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	found, exists, err := k.nodes.GetByKey(name)
	if err != nil || !exists {
		return stay{}, false, err == nil, err
	}
	node := found.(*corev1.Node)
	c, known := k.groups.chooseForNode(node)
	return c.stay, nodeLost(node), known, nil
}

// settleElapsed reports whether Kubernetes has had settleTime to see the pod's present state; if not, the pod is
// enqueued again for then.
func (k *TolerationController) settleElapsed(key types.NamespacedName) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	since, ok := k.waitingSince[key]
	if !ok {
		since = time.Now()
		k.waitingSince[key] = since
	}
	left := settleTime - time.Since(since)
	if left > 0 {
		k.queue.AddAfter(key, left)
	}
	return left <= 0
}

// stopWaiting ends the wait of a pod that was changed or deleted.
func (k *TolerationController) stopWaiting(key types.NamespacedName) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.waitingSince, key)
}

// reconcilePod gives one pod the tolerations that its node specifies.
func (k *TolerationController) reconcilePod(ctx context.Context, key types.NamespacedName) error {
	found, exists, err := k.pods.GetByKey(key.String())
	if err != nil || !exists {
		return err
	}
	packed, ok := podcache.Of(found)
	if !ok || !k.owner.Owns(packed.Node()) {
		return nil
	}
	pod, err := packed.Whole()
	if err != nil {
		return err
	}
	if pod.DeletionTimestamp != nil {
		return nil
	}
	want, lost, known, err := k.wantedStay(pod.Spec.NodeName)
	if err != nil || !known {
		return err // onGroupsLoaded enqueues it again
	}
	change := decide(pod, want)
	if change == nil || lost && change.resetEviction(pod) && !k.settleElapsed(key) {
		return nil
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{
			"uid": pod.UID, "resourceVersion": pod.ResourceVersion, "annotations": map[string]any{names.AnnotationToleratedBefore: change.before},
		},
		"spec": map[string]any{"tolerations": change.tolerations},
	})
	if err != nil {
		return fmt.Errorf("encode the tolerations: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err = k.kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: names.ManagerCloudcore})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // the event of its next change enqueues it again
	case err != nil:
		return fmt.Errorf("patch: %w", err)
	}
	k.stopWaiting(key)
	k.writes.Inc()
	return nil
}
