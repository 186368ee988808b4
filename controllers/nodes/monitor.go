package nodes

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
)

const (
	// heartbeatTimeout is the time without a heartbeat after which a node counts as disconnected: both ends detect a
	// dead link within it.
	heartbeatTimeout = 30 * time.Second
	// maxWriters is the number of concurrent API writes.
	maxWriters = 32
	// A refused write is retried soon, and during an outage of the apiserver not too often.
	retryBase, retryMax = 100 * time.Millisecond, 10 * time.Second
)

// Monitor records the heartbeats of this replica's nodes and writes their state to Kubernetes.
type Monitor struct {
	kube    kubernetes.Interface
	objects cache.Cache
	owner   controllers.Ownership
	// evaluator decides which conditions a node has, writer writes them.
	evaluator *conditionEvaluator
	writer    *nodeWriter
	log       *zap.Logger
	leases    leaseSchedule
	// heartbeatTimeout holds the constant, or another value in tests.
	heartbeatTimeout time.Duration

	mu sync.Mutex
	// Guarded by mu.
	nodes map[string]*nodeHealth
	// heartbeatOrder holds the nodes in order of their last heartbeat, the oldest first; a lost node is not in it.
	heartbeatOrder list.List
	// queue, wake, store and recorder are nil before Start. wake is signalled when heartbeatOrder has got its first node.
	queue controllers.Queue[string]
	wake  chan struct{}
	store toolscache.Store
	// recorder records the events about changes.
	recorder record.EventRecorder
}

// nodeHealth is the state of one owned node; guarded by Monitor.mu.
type nodeHealth struct {
	name string
	// heardAt is when the last heartbeat arrived, or when this replica came to own the node.
	heardAt time.Time
	element *list.Element
	// connectedAt is when connected became true.
	connectedAt time.Time
	// progress is what the last heartbeat reported; progressWritten is when its condition was last changed.
	progress        Progress
	progressWritten time.Time
	// connected: a heartbeat arrived within heartbeatTimeout. lost: none did. Neither: no heartbeat yet.
	connected, lost, healthy bool
	// leaseDue is when the Lease is due to be renewed, zero before this replica has renewed it. renewalDue: the write is to be done.
	leaseDue   time.Time
	renewalDue bool
}

// New creates a Monitor. objects must serve Nodes. revoked reports whether a node was revoked; call EnqueueNode when
// that changes. Call EnqueueIfLost when the result of autonomy changes. version returns the version of the Kubernetes
// API, "" while it is not known. metrics may be nil.
func New(leases LeaseBudget, kube kubernetes.Interface, objects cache.Cache, owner controllers.Ownership, revoked func(node string) bool, autonomy Autonomy, version func() string, metrics prometheus.Registerer, log *zap.Logger) *Monitor {
	writes := promauto.With(metrics).NewCounterVec(prometheus.CounterOpts{
		Name: "frond_nodes_writes_total", Help: "Writes to Kubernetes that heartbeats caused, by what was written.",
	}, []string{"what"})
	m := &Monitor{
		kube: kube, objects: objects, owner: owner, log: log, nodes: map[string]*nodeHealth{},
		leases: leaseSchedule{leases, heartbeatPeriod}, heartbeatTimeout: heartbeatTimeout,
		evaluator: &conditionEvaluator{
			revoked: revoked, autonomy: autonomy, version: version,
			timing: conditionTiming{behindAfter: behindAfter, caughtUpWithin: caughtUpWithin, changeEvery: changeEvery},
		},
		writer: &nodeWriter{kube: kube, writes: writes, log: log},
	}
	if metrics != nil {
		metrics.MustRegister(gauges{m})
	}
	return m
}

// RecordHeartbeat records a heartbeat; the caller has verified its sender. progress is called for nodes that this
// replica owns. RecordHeartbeat does not block.
func (m *Monitor) RecordHeartbeat(name string, beat wire.Heartbeat, progress func() Progress) {
	if !m.owner.Owns(name) {
		return
	}
	now := progress()
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.touchNode(name)
	changed := !n.connected || n.healthy != beat.Healthy
	if !n.connected {
		n.connectedAt = n.heardAt
	}
	n.connected, n.lost, n.healthy, n.progress = true, false, beat.Healthy, now
	due := n.healthy && !n.renewalDue && m.leases.isDue(n.leaseDue, n.heardAt)
	n.renewalDue = n.renewalDue || due
	if m.queue != nil && (changed || due || !m.nodeSettled(n)) {
		m.queue.Add(name)
	}
}

// EnqueueNode enqueues a node whose conditions may have to change. It does not block.
func (m *Monitor) EnqueueNode(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.owner.Owns(name) || m.queue == nil {
		return // the owner evaluates it when it starts, or takes the node over
	}
	if m.nodes[name] == nil {
		m.touchNode(name)
	}
	m.queue.Add(name)
}

// EnqueueIfLost enqueues a node if it is lost, as its conditions may have to change. It does not block.
func (m *Monitor) EnqueueIfLost(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if object := m.cachedNode(name); object != nil {
		m.enqueueIfLost(object)
	}
}

// enqueueIfLost enqueues a lost node if its conditions have to change. The caller holds mu.
func (m *Monitor) enqueueIfLost(object *corev1.Node) {
	if n := m.nodes[object.Name]; n != nil && n.lost && !m.nodeSettled(n) {
		m.queue.Add(n.name)
	}
}

// touchNode moves a node to the end of heartbeatOrder, and adds it if it is new. The caller holds mu.
func (m *Monitor) touchNode(name string) *nodeHealth {
	n := m.nodes[name]
	if n == nil {
		n = &nodeHealth{name: name}
		m.nodes[name] = n
	}
	n.heardAt = time.Now()
	if n.element != nil {
		m.heartbeatOrder.MoveToBack(n.element)
		return n
	}
	n.element = m.heartbeatOrder.PushBack(n)
	if m.wake != nil && m.heartbeatOrder.Len() == 1 {
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
	return n
}

// leasePeriod returns the time between two renewals of a Lease. The caller holds mu.
func (m *Monitor) leasePeriod() time.Duration { return m.leases.period(m.heartbeatOrder.Len()) }

// nodeSettled reports whether a node needs no write except renewals. The caller holds mu.
func (m *Monitor) nodeSettled(n *nodeHealth) bool {
	object := m.cachedNode(n.name)
	return object == nil || hasGatewayLabels(object) && len(m.evaluator.conditionChanges(n, object, time.Now())) == 0
}

// cachedNode returns the Node from the cache, nil if there is none.
func (m *Monitor) cachedNode(name string) *corev1.Node {
	if m.store == nil {
		return nil
	}
	found, exists, err := m.store.GetByKey(name)
	if err != nil || !exists {
		return nil
	}
	return found.(*corev1.Node)
}

// Start monitors nodes until ctx ends and then returns nil. The caller must start the cache.
func (m *Monitor) Start(ctx context.Context) error {
	store, err := controllers.StoreOf(ctx, m.objects, &corev1.Node{})
	if err != nil {
		return controllers.IgnoreCanceled(ctx, err)
	}
	queue := controllers.NewQueue[string](retryBase, retryMax)
	defer queue.ShutDown()
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: m.kube.CoreV1().Events(corev1.NamespaceAll)})
	wake := make(chan struct{}, 1) // one waiting signal covers all changes before it is received
	m.mu.Lock()
	m.queue, m.wake, m.store = queue, wake, store
	m.recorder = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: names.ManagerCloudcore})
	for name := range m.nodes {
		queue.Add(name) // heartbeats that arrived before Start
	}
	m.mu.Unlock()
	stop, err := controllers.Follow(ctx, m.objects, &corev1.Node{}, m.onNodeChanged, nil)
	if err != nil {
		return controllers.IgnoreCanceled(ctx, err)
	}
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		m.watchNodes(gctx, wake)
		return nil
	})
	controllers.ProcessQueue(gctx, queue, maxWriters, m.processNode)
	return controllers.IgnoreCanceled(ctx, g.Wait())
}

// watchNodes detects nodes that have become silent, and changes of ownership.
func (m *Monitor) watchNodes(ctx context.Context, wake <-chan struct{}) {
	changed := m.owner.Changed()
	m.syncOwnership()
	for {
		timer := time.NewTimer(m.expireSilent())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-changed:
			changed = m.owner.Changed()
			m.syncOwnership()
		case <-wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// syncOwnership adds the owned nodes that are connected according to Kubernetes, so that a silent one is detected, and
// those known to be lost, so that their conditions stay correct. It removes the nodes that this replica does not own.
func (m *Monitor) syncOwnership() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, n := range m.nodes {
		if !m.owner.Owns(name) {
			m.forgetNode(n)
		}
	}
	for _, found := range m.store.List() {
		m.trackNode(found.(*corev1.Node))
		m.enqueueIfLost(found.(*corev1.Node))
	}
}

// onNodeChanged handles changes that another replica wrote to a node that this replica owns by now: the write arrived
// late, or this replica's cache was behind at the takeover. A silent node must not stay connected by it. It also
// handles changes by users to a lost node.
func (m *Monitor) onNodeChanged(node *corev1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trackNode(node)
	m.enqueueIfLost(node)
}

// trackNode adds a node that has sent no heartbeat yet. The caller holds mu.
func (m *Monitor) trackNode(object *corev1.Node) {
	if m.nodes[object.Name] != nil || !m.owner.Owns(object.Name) {
		return
	}
	switch link := stateOf(object, names.ConditionConnected); {
	case link.status == corev1.ConditionTrue:
		m.touchNode(object.Name)
	case link.reason == names.ReasonNoHeartbeat || link.reason == names.ReasonAutonomous: // as the previous owner has found
		m.nodes[object.Name] = &nodeHealth{name: object.Name, lost: true}
	}
}

// forgetNode removes a node. The caller holds mu.
func (m *Monitor) forgetNode(n *nodeHealth) {
	if n.element != nil {
		m.heartbeatOrder.Remove(n.element)
	}
	delete(m.nodes, n.name)
}

// expireSilent marks the nodes that were silent for too long as lost, and returns the time until the next one may be.
func (m *Monitor) expireSilent() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	for at := m.heartbeatOrder.Front(); at != nil; at = m.heartbeatOrder.Front() {
		n := at.Value.(*nodeHealth)
		if left := m.heartbeatTimeout - time.Since(n.heardAt); left > 0 {
			return left
		}
		m.heartbeatOrder.Remove(at)
		n.element, n.connected, n.lost = nil, false, true
		m.queue.Add(n.name)
	}
	return time.Hour // touchNode signals wake
}

func (m *Monitor) processNode(ctx context.Context, name string) error {
	err := m.reconcileNode(ctx, name)
	if errors.Is(err, errNoNode) {
		return nil // the next heartbeat tries again
	}
	if err != nil && ctx.Err() == nil {
		m.log.Warn("node not kept, trying again", zap.String("node", name), zap.Error(err))
	}
	return err
}
