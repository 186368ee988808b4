package nodes

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
)

// Ownership says which nodes this replica writes for. Calls may be concurrent and must not block.
type Ownership interface {
	// Owns reports whether this replica is the node's owner now.
	Owns(node string) bool
	// Changed returns a channel that is closed at the next change of any answer of Owns after this call.
	Changed() <-chan struct{}
	// Fresh reports whether this replica has been heard of so lately that no other can have taken its nodes over.
	LeaseValid() bool
}

const (
	// renewEvery is as often as a kubelet renews; with a heartbeat every 10 s at most 20 s pass, of the Lease's 40.
	renewEvery = 10 * time.Second
	// heartbeatTimeout is when a node counts as cut off: both ends find a dead link within it.
	heartbeatTimeout = 30 * time.Second
	// maxWriters is how many API writes run at once.
	maxWriters = 32
	// A refused write is tried again soon, and during an outage of the apiserver not too often.
	retryBase, retryMax = 100 * time.Millisecond, 10 * time.Second
)

// Monitor hears the heartbeats of all nodes and writes for those that this replica owns.
type Monitor struct {
	kube    kubernetes.Interface
	objects cache.Cache
	owner   Ownership
	revoked func(node string) bool
	// autonomy says what becomes of the pods of a lost node.
	autonomy Autonomy
	// version is that of the Kubernetes API, "" while it is not known.
	version func() string
	writes  *prometheus.CounterVec
	log     *zap.Logger
	// renewEvery, heartbeatTimeout and timing are the constants, but in tests.
	renewEvery, heartbeatTimeout time.Duration
	timing                       conditionTiming

	mu sync.Mutex
	// Guarded by mu.
	nodes map[string]*nodeHealth
	// heartbeatOrder holds the nodes in order of their last heartbeat, the most silent first; a lost node is not in it.
	heartbeatOrder list.List
	// queue, wake, store and recorder are nil before Start. wake is told when heard has got its first node.
	queue controllers.Queue[string]
	wake  chan struct{}
	store toolscache.Store
	// recorder tells people of changes.
	recorder record.EventRecorder
}

// nodeHealth is what is known of one owned node; guarded by Monitor.mu.
type nodeHealth struct {
	name string
	// heardAt is when the last heartbeat came, or when the node became ours.
	heardAt time.Time
	element *list.Element
	// connectedAt is when connected became true.
	connectedAt time.Time
	// progress is what the last heartbeat showed; told is when the condition of it was last changed.
	progress        Progress
	progressWritten time.Time
	// connected: a heartbeat came within the silence. lost: none did. Neither: not heard yet.
	connected, lost, healthy bool
	// leaseRenewed is when the Lease was last written; renewing: it is due.
	leaseRenewed time.Time
	renewalDue   bool
}

// New makes a Monitor. objects must serve Nodes. revoked says whose gateway was shut out, and EnqueueNode when that changes; EnqueueIfLost is to
// be called when autonomy answers otherwise. version is that of the Kubernetes API, "" while it is not known. metrics may be nil.
func New(kube kubernetes.Interface, objects cache.Cache, owner Ownership, revoked func(node string) bool, autonomy Autonomy, version func() string, metrics prometheus.Registerer, log *zap.Logger) *Monitor {
	m := &Monitor{
		kube: kube, objects: objects, owner: owner, revoked: revoked, autonomy: autonomy, version: version, log: log, renewEvery: renewEvery, heartbeatTimeout: heartbeatTimeout, nodes: map[string]*nodeHealth{},
		timing: conditionTiming{behindAfter: behindAfter, caughtUpWithin: caughtUpWithin, changeEvery: changeEvery},
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "frond_nodes_writes_total", Help: "Writes to Kubernetes that heartbeats caused, by what was written.",
		}, []string{"what"}),
	}
	if metrics != nil {
		metrics.MustRegister(m.writes, gauges{m})
	}
	return m
}

// RecordHeartbeat notes a heartbeat; the caller has made sure whose it is. progress is asked for nodes that this replica owns. RecordHeartbeat
// does not block.
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
	due := n.healthy && !n.renewalDue && time.Since(n.leaseRenewed) >= m.renewEvery
	n.renewalDue = n.renewalDue || due
	if m.queue != nil && (changed || due || !m.nodeSettled(n)) {
		m.queue.Add(name)
	}
}

// EnqueueNode has the conditions of a node put right now. It does not block.
func (m *Monitor) EnqueueNode(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.owner.Owns(name) || m.queue == nil {
		return // who owns it looks when it begins, or takes the node over
	}
	if m.nodes[name] == nil {
		m.touchNode(name)
	}
	m.queue.Add(name)
}

// EnqueueIfLost has the conditions of a node put right if it is silent. It does not block.
func (m *Monitor) EnqueueIfLost(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if object := m.cachedNode(name); object != nil {
		m.enqueueIfLost(object)
	}
}

// enqueueIfLost has the conditions of a silent node put right. The caller holds mu.
func (m *Monitor) enqueueIfLost(object *corev1.Node) {
	if n := m.nodes[object.Name]; n != nil && n.lost && !m.nodeSettled(n) {
		m.queue.Add(n.name)
	}
}

// touchNode moves a node to the end of the line, and takes it up if it is new. The caller holds mu.
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

// nodeSettled reports whether there is nothing to be done to a node but renewals. The caller holds mu.
func (m *Monitor) nodeSettled(n *nodeHealth) bool {
	object := m.cachedNode(n.name)
	return object == nil || hasGatewayLabels(object) && len(m.conditionChanges(n, object, time.Now())) == 0
}

// cachedNode returns the Node as the cache has it, nil if there is none.
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

// Start watches until ctx ends and then returns nil. The cache must be started by the caller.
func (m *Monitor) Start(ctx context.Context) error {
	informer, err := m.objects.GetInformer(ctx, &corev1.Node{})
	if err != nil {
		return controllers.IgnoreCanceled(ctx, fmt.Errorf("follow nodes: %w", err))
	}
	shared, ok := informer.(toolscache.SharedIndexInformer)
	if !ok {
		return fmt.Errorf("informer of nodes is a %T: the cache must not be split by namespaces", informer)
	}
	queue := controllers.NewQueue[string](retryBase, retryMax)
	defer queue.ShutDown()
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: m.kube.CoreV1().Events(corev1.NamespaceAll)})
	wake := make(chan struct{}, 1) // one waiting wake-up covers all that came before it is taken
	m.mu.Lock()
	m.queue, m.wake, m.store = queue, wake, shared.GetStore()
	m.recorder = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: fieldManager})
	for name := range m.nodes {
		queue.Add(name) // heard before Start
	}
	m.mu.Unlock()
	handler, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: m.onNodeChanged, UpdateFunc: func(_, after any) { m.onNodeChanged(after) },
	})
	if err != nil {
		return controllers.IgnoreCanceled(ctx, fmt.Errorf("follow nodes: %w", err))
	}
	defer func() { _ = informer.RemoveEventHandler(handler) }() // fails only where the informer is gone

	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		m.watchNodes(gctx, wake)
		return nil
	})
	controllers.ProcessQueue(gctx, queue, maxWriters, m.processNode)
	return controllers.IgnoreCanceled(ctx, g.Wait())
}

// watchNodes notices nodes that have gone silent, and changes of ownership.
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

// syncOwnership takes up the owned nodes that Kubernetes believes connected, so that a silent one is noticed, and those known to be silent,
// so that what is said of them stays true; it lets go of those that are not ours.
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

// onNodeChanged hears what another replica says of a node that is ours by now: its word came late, or our cache was behind when we took
// over. A silent node must not stay connected by it. It also hears what people say of a silent node.
func (m *Monitor) onNodeChanged(object any) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trackNode(node)
	m.enqueueIfLost(node)
}

// trackNode is for nodes not heard of yet. The caller holds mu.
func (m *Monitor) trackNode(object *corev1.Node) {
	if m.nodes[object.Name] != nil || !m.owner.Owns(object.Name) {
		return
	}
	switch link := stateOf(object, Connected); {
	case link.status == corev1.ConditionTrue:
		m.touchNode(object.Name)
	case link.reason == reasonSilent || link.reason == reasonAutonomous: // as whoever watched before has found
		m.nodes[object.Name] = &nodeHealth{name: object.Name, lost: true}
	}
}

// forgetNode lets go of a node. The caller holds mu.
func (m *Monitor) forgetNode(n *nodeHealth) {
	if n.element != nil {
		m.heartbeatOrder.Remove(n.element)
	}
	delete(m.nodes, n.name)
}

// expireSilent marks the nodes that were silent for too long and returns the time until the next one may be.
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
	return time.Hour // touchNode wakes us
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
