package autonomy

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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

	"github.com/frond-edge/frond/controllers"
)

// Ownership says which nodes this replica writes for. Calls may be concurrent and must not block.
type Ownership interface {
	// Owns reports whether this replica is the node's owner now.
	Owns(node string) bool
	// Changed returns a channel that is closed at the next change of any answer of Owns after this call.
	Changed() <-chan struct{}
}

const (
	// workers is how many API writes run at once.
	workers = 8
	// A refused write is tried again soon, and during an outage of the apiserver not too often.
	retryFirst, retryMost = 100 * time.Millisecond, 10 * time.Second
	// writeTimeout bounds one write.
	writeTimeout = 10 * time.Second

	fieldManager = "frond-cloudcore"
)

// Rules are the rights that cloudcore needs for this package.
func Rules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch", "patch"}},
	}
}

// Keeper keeps the tolerations of the pods on annotated Nodes.
type Keeper struct {
	kube    kubernetes.Interface
	objects cache.Cache
	owner   Ownership
	warn    func(node, reason, message string)
	writes  prometheus.Counter
	log     *zap.Logger
	queue   controllers.Queue[types.NamespacedName]

	mu sync.Mutex
	// pods and nodes are the informers' stores, which lock themselves; guarded by mu, nil before Start.
	pods, nodes toolscache.Store
	// asked is what each Node's annotation said last; guarded by mu.
	asked map[string]string
}

// New makes a Keeper. objects must serve Nodes and Pods; warn tells people of a node and must not block; metrics may be nil.
func New(kube kubernetes.Interface, objects cache.Cache, owner Ownership, warn func(node, reason, message string), metrics prometheus.Registerer, log *zap.Logger) *Keeper {
	k := &Keeper{
		kube: kube, objects: objects, owner: owner, warn: warn, log: log, asked: map[string]string{},
		writes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "frond_autonomy_writes_total", Help: "Pods whose tolerations were changed for the sake of their node's autonomy.",
		}),
	}
	if metrics != nil {
		metrics.MustRegister(k.writes)
	}
	return k
}

// Start keeps until ctx ends and then returns nil. The cache must be started by the caller.
func (k *Keeper) Start(ctx context.Context) error {
	k.queue = controllers.NewQueue[types.NamespacedName](retryFirst, retryMost)
	defer k.queue.ShutDown()
	stop, err := k.follow(ctx)
	defer stop()
	if err != nil {
		return controllers.Ended(ctx, err)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		k.watchOwnership(gctx)
		return nil
	})
	controllers.Work(gctx, k.queue, workers, k.work)
	return controllers.Ended(ctx, g.Wait())
}

// follow subscribes to Nodes and Pods. The returned function ends the subscriptions and is never nil.
func (k *Keeper) follow(ctx context.Context) (stop func(), err error) {
	stop = func() {}
	nodes, err := k.objects.GetInformer(ctx, &corev1.Node{})
	if err != nil {
		return stop, fmt.Errorf("follow nodes: %w", err)
	}
	pods, err := k.objects.GetInformer(ctx, &corev1.Pod{})
	if err != nil {
		return stop, fmt.Errorf("follow pods: %w", err)
	}
	sharedNodes, ok := nodes.(toolscache.SharedIndexInformer)
	sharedPods, also := pods.(toolscache.SharedIndexInformer)
	if !ok || !also {
		return stop, fmt.Errorf("informers are %T and %T: the cache must not be split by namespaces", nodes, pods)
	}
	k.mu.Lock()
	k.nodes, k.pods = sharedNodes.GetStore(), sharedPods.GetStore()
	k.mu.Unlock()
	ofNodes, err := nodes.AddEventHandler(handler(func(n *corev1.Node) { k.noteNode(n) }))
	if err != nil {
		return stop, fmt.Errorf("follow nodes: %w", err)
	}
	stop = func() { _ = nodes.RemoveEventHandler(ofNodes) }
	ofPods, err := pods.AddEventHandler(handler(func(p *corev1.Pod) { k.add(p) }))
	if err != nil {
		return stop, fmt.Errorf("follow pods: %w", err)
	}
	return func() {
		_ = nodes.RemoveEventHandler(ofNodes)
		_ = pods.RemoveEventHandler(ofPods)
	}, nil
}

// handler calls handle for each object that is new or changed.
func handler[T any](handle func(T)) toolscache.ResourceEventHandler {
	take := func(object any) {
		if o, ok := object.(T); ok {
			handle(o)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{AddFunc: take, UpdateFunc: func(_, o any) { take(o) }}
}

// noteNode asks for all pods of a node whose annotation changed.
func (k *Keeper) noteNode(node *corev1.Node) {
	value := node.Annotations[Annotation]
	k.mu.Lock()
	before := k.asked[node.Name]
	if value == "" {
		delete(k.asked, node.Name)
	} else {
		k.asked[node.Name] = value
	}
	k.mu.Unlock()
	if value == before {
		return
	}
	if _, err := parse(node.Annotations); err != nil && k.owner.Owns(node.Name) {
		k.log.Warn("autonomy not understood, Kubernetes' own rules apply", zap.String("node", node.Name), zap.Error(err))
		k.warn(node.Name, "AutonomyNotUnderstood", err.Error()+": Kubernetes' own rules apply")
	}
	k.addAll(func(name string) bool { return name == node.Name })
}

// addAll asks for the pods of the nodes that match. It looks at each pod of the cluster, which is rare: at a changed
// annotation, and when replicas come or go.
func (k *Keeper) addAll(match func(node string) bool) {
	for _, o := range k.pods.List() {
		if pod := o.(*corev1.Pod); match(pod.Spec.NodeName) {
			k.add(pod)
		}
	}
}

// add asks for a pod that may need a change.
func (k *Keeper) add(pod *corev1.Pod) {
	k.mu.Lock()
	_, asked := k.asked[pod.Spec.NodeName]
	k.mu.Unlock()
	_, changed := pod.Annotations[beforeAnnotation]
	if pod.Spec.NodeName != "" && (asked || changed) {
		k.queue.Add(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
	}
}

// watchOwnership looks at all pods again when nodes become ours.
func (k *Keeper) watchOwnership(ctx context.Context) {
	for {
		changed := k.owner.Changed() // before the look, so that no change falls between
		k.addAll(func(string) bool { return true })
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (k *Keeper) work(ctx context.Context, key types.NamespacedName) error {
	err := k.keep(ctx, key)
	if err != nil && ctx.Err() == nil {
		k.log.Warn("tolerations not kept, trying again", zap.Stringer("pod", key), zap.Error(err))
	}
	return err
}

// keep gives one pod the tolerations that its node asks for.
func (k *Keeper) keep(ctx context.Context, key types.NamespacedName) error {
	found, exists, err := k.pods.GetByKey(key.String())
	if err != nil || !exists {
		return err
	}
	pod := found.(*corev1.Pod)
	if pod.DeletionTimestamp != nil || !k.owner.Owns(pod.Spec.NodeName) {
		return nil
	}
	var want stay
	if node, exists, err := k.nodes.GetByKey(pod.Spec.NodeName); err != nil {
		return err
	} else if exists {
		want, _ = parse(node.(*corev1.Node).Annotations) // noteNode has told
	}
	change := decide(pod, want)
	if change == nil {
		return nil
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{
			"uid": pod.UID, "resourceVersion": pod.ResourceVersion, "annotations": map[string]any{beforeAnnotation: change.before},
		},
		"spec": map[string]any{"tolerations": change.tolerations},
	})
	if err != nil {
		return fmt.Errorf("encode the tolerations: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err = k.kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // its event comes and brings it here again
	case err != nil:
		return fmt.Errorf("patch: %w", err)
	}
	k.writes.Inc()
	return nil
}
