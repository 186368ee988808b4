package ports

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers"
)

const (
	// configMapNamespace and configMapName identify the ConfigMap.
	configMapNamespace, configMapName = "kube-system", "frond-node-ports"
	// reconcilePause is the pause between two reconciliations of all nodes, so that many new nodes cause one write.
	// reconcileEvery is the longest interval, as another replica's nodes may have become ours, or a node may not have
	// received the request to report itself.
	reconcilePause, reconcileEvery = 200 * time.Millisecond, 5 * time.Second
	// writeTimeout bounds one reconciliation.
	writeTimeout = 10 * time.Second
)

// Rules returns the RBAC rules that cloudcore needs for this package.
func Rules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch", "create"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{configMapName}, Verbs: []string{"get", "update"}},
	}
}

// Allocator allocates a port for each node. Make it with New, run it once with Start; Port may be called at any time.
type Allocator struct {
	ranges  []config.PortRange
	kube    kubernetes.Interface
	objects cache.Cache
	owns    func(node string) bool
	// onChange is called with the node of each port, at each change.
	onChange func(nodes map[uint16]string)
	// requestReport asks a node to report itself: its Node does not contain its port yet.
	requestReport func(node string)
	log           *zap.Logger
	wake          chan struct{} // buffer of 1: a reconciliation is due, or none

	mu sync.Mutex
	// Guarded by mu.
	ports map[string]uint16
	// deleted says that the ConfigMap was deleted: it is created again as it was.
	deleted bool
}

// New creates an Allocator. It serves the nodes for which owns is true. changed and tell must not block.
func New(ranges []config.PortRange, kube kubernetes.Interface, objects cache.Cache, owns func(node string) bool,
	changed func(nodes map[uint16]string), tell func(node string), log *zap.Logger,
) *Allocator {
	return &Allocator{
		ranges: ranges, kube: kube, objects: objects, owns: owns, onChange: changed, requestReport: tell, log: log,
		wake: make(chan struct{}, 1), ports: map[string]uint16{},
	}
}

// Port returns the port of a node.
func (k *Allocator) Port(node string) (port uint16, has bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	port, has = k.ports[node]
	return port, has
}

func (k *Allocator) copyPorts() map[string]uint16 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.ports)
}

// Start allocates ports until ctx ends.
func (k *Allocator) Start(ctx context.Context) error {
	stop, err := k.startInformers(ctx)
	if err != nil {
		return fmt.Errorf("ports of nodes: %w", err)
	}
	defer stop()
	for {
		began := time.Now()
		if err := k.reconcileNodes(ctx); err != nil && ctx.Err() == nil {
			k.log.Warn("ports of nodes not written, trying again", zap.Duration("took", time.Since(began)), zap.Error(err))
			k.wakeLoop()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reconcilePause):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-k.wake:
		case <-time.After(reconcileEvery):
		}
	}
}

func (k *Allocator) wakeLoop() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// startInformers watches the ConfigMap, and the nodes that have no port or whose Node does not contain it.
func (k *Allocator) startInformers(ctx context.Context) (stop func(), err error) {
	stopMaps, err := controllers.Follow(ctx, k.objects, &corev1.ConfigMap{}, func(cm *corev1.ConfigMap) {
		if isPortsConfigMap(cm) {
			k.loadConfigMap(cm)
		}
	}, func(cm *corev1.ConfigMap) {
		if isPortsConfigMap(cm) {
			k.recordDeleted()
		}
	})
	if err != nil {
		return nil, err
	}
	stopNodes, err := controllers.Follow(ctx, k.objects, &corev1.Node{}, func(node *corev1.Node) {
		if !k.nodeSettled(node) {
			k.wakeLoop()
		}
	}, nil)
	if err != nil {
		stopMaps()
		return nil, err
	}
	return func() {
		stopMaps()
		stopNodes()
	}, nil
}

func isPortsConfigMap(cm *corev1.ConfigMap) bool {
	return cm.Namespace == configMapNamespace && cm.Name == configMapName
}

func (k *Allocator) recordDeleted() {
	k.mu.Lock()
	k.deleted = true
	k.mu.Unlock()
	k.log.Warn("ports of nodes deleted, making them again")
	k.wakeLoop()
}

// clearDeleted reports and clears deleted.
func (k *Allocator) clearDeleted() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	lost := k.deleted
	k.deleted = false
	return lost
}

// nodeSettled reports whether a node needs nothing.
func (k *Allocator) nodeSettled(node *corev1.Node) bool {
	if _, edge := node.Labels[names.LabelEdge]; !edge || node.DeletionTimestamp != nil || !k.owns(node.Name) {
		return true
	}
	port, has := k.Port(node.Name)
	return has && inRanges(port, k.ranges) && node.Status.DaemonEndpoints.KubeletEndpoint.Port == int32(port)
}

// loadConfigMap stores the ports of a version of the ConfigMap.
func (k *Allocator) loadConfigMap(cm *corev1.ConfigMap) {
	have := parsePorts(cm.Data)
	k.mu.Lock()
	same := maps.Equal(have, k.ports)
	k.ports = have
	k.mu.Unlock()
	if same {
		return
	}
	nodes := make(map[uint16]string, len(have))
	for node, port := range have {
		nodes[port] = node
	}
	k.onChange(nodes)
	k.wakeLoop()
}

// reconcileNodes processes all nodes that need a port or a report.
func (k *Allocator) reconcileNodes(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	var list corev1.NodeList
	if err := k.objects.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	alive := make(map[string]bool, len(list.Items))
	var wanted []string
	for i := range list.Items {
		node := &list.Items[i]
		alive[node.Name] = true
		if k.nodeSettled(node) {
			continue
		}
		if port, has := k.Port(node.Name); has && inRanges(port, k.ranges) {
			k.requestReport(node.Name)
			continue
		}
		wanted = append(wanted, node.Name)
	}
	lost := k.clearDeleted()
	if len(wanted) == 0 && !lost {
		return nil
	}
	err := k.assignPorts(ctx, wanted, func(node string) bool { return alive[node] })
	if err != nil && lost {
		k.recordDeleted()
	}
	return err
}

// assignPorts writes ports for nodes that have none.
func (k *Allocator) assignPorts(ctx context.Context, wanted []string, alive func(node string) bool) error {
	configMaps := k.kube.CoreV1().ConfigMaps(configMapNamespace)
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		cm, err := configMaps.Get(ctx, configMapName, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if missing {
			cm = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: configMapNamespace, Name: configMapName}}
		} else if err != nil {
			return err
		}
		have := parsePorts(cm.Data)
		if missing {
			have = k.copyPorts()
		}
		next, full := computeAssignment(have, wanted, alive, k.ranges)
		if len(full) > 0 {
			k.log.Error("no port is left: kubectl cannot reach these nodes; give gateway.direct more ports",
				zap.Int("nodes", len(full)), zap.String("node", full[0]))
		}
		if maps.Equal(next, have) && !missing {
			return nil // it will arrive through the watch
		}
		cm.Data = formatPorts(next)
		if missing {
			_, err = configMaps.Create(ctx, cm, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return apierrors.NewConflict(corev1.Resource("configmaps"), configMapName, err)
			}
		} else {
			_, err = configMaps.Update(ctx, cm, metav1.UpdateOptions{})
		}
		if err != nil {
			return err
		}
		k.log.Info("ports given to nodes", zap.Int("nodes", len(wanted)-len(full)), zap.Int("ports", len(next)))
		return nil // it arrives through the watch, in the order of versions
	})
}
