package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
)

// Connected is the condition that says whether heartbeats of the node arrive.
const Connected corev1.NodeConditionType = "EdgeConnected"

const (
	// edgeLabel and agentLabel mark the Nodes that are gateways, with KubeEdge's names. A kubelet may not set them itself.
	edgeLabel  = "node-role.kubernetes.io/edge"
	agentLabel = "node-role.kubernetes.io/agent"

	reasonBeats    = "HeartbeatsArrive"
	reasonSilent   = "NoHeartbeat"
	reasonUnwell   = "KubeletUnwell"
	fieldManager   = "frond-cloudcore"
	leaseNamespace = corev1.NamespaceNodeLease
)

const (
	// renewEvery keeps a node Ready with the controller manager's grace period of 50 s though one renewal fails.
	renewEvery = 20 * time.Second
	// leaseDuration is what a kubelet itself writes.
	leaseDuration = 40
	// silence is when a node counts as cut off: beats come each 10 s, both ends find a dead link within 30 s.
	silence = 30 * time.Second
	// scanPeriod is how often the owner looks at its nodes.
	scanPeriod = time.Second
	// settlePeriod is how long a new replica listens before it calls a node silent.
	settlePeriod = silence + 5*time.Second
	// writers is how many API writes run at once.
	writers = 16
	// writeTimeout bounds one of them.
	writeTimeout = 10 * time.Second
)

// Ownership says which nodes this replica writes for.
type Ownership interface{ Owns(node string) bool }

// Monitor watches the heartbeats of all nodes and writes for those that this replica owns.
type Monitor struct {
	kube    kubernetes.Interface
	objects client.Reader
	owner   Ownership
	online  prometheus.Gauge
	log     *zap.Logger

	mu    sync.Mutex
	nodes map[string]*seen // guarded by mu
}

// seen is what is known of one node; guarded by Monitor.mu.
type seen struct {
	beat    time.Time // zero: never heard by this replica
	healthy bool
	renewed time.Time // last Lease renewal by this replica
	writing bool
}

// New makes a Monitor. objects must serve Nodes from a cache. metrics may be nil.
func New(kube kubernetes.Interface, objects client.Reader, owner Ownership, metrics prometheus.Registerer, log *zap.Logger) *Monitor {
	m := &Monitor{
		kube: kube, objects: objects, owner: owner, log: log, nodes: map[string]*seen{},
		online: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "frond", Name: "connected_nodes", Help: "Nodes that this replica owns and whose heartbeats arrive.",
		}),
	}
	if metrics != nil {
		metrics.MustRegister(m.online)
	}
	return m
}

// Beat notes a heartbeat. It does not block.
func (m *Monitor) Beat(node string, beat wire.Beat) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.nodes[node]
	if s == nil {
		s = &seen{}
		m.nodes[node] = s
	}
	s.beat, s.healthy = time.Now(), beat.Healthy
}

// Start watches until ctx ends and then returns nil.
func (m *Monitor) Start(ctx context.Context) error {
	ticker := time.NewTicker(scanPeriod)
	defer ticker.Stop()
	began := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(writers + 1) // and the loop below
	g.Go(func() error {
		for {
			select {
			case <-gctx.Done():
				return nil
			case now := <-ticker.C:
				for _, t := range m.scan(gctx, now, now.Sub(began) > settlePeriod) {
					g.Go(func() error {
						m.write(gctx, t)
						return nil
					})
				}
			}
		}
	})
	return g.Wait()
}

// task is what is to be written for one node.
type task struct {
	node string
	// adopt: the Node lacks the labels of a gateway.
	adopt     bool
	renew     bool
	condition *corev1.NodeCondition
}

// scan lists what is due. settled: this replica has listened long enough to call a node silent.
func (m *Monitor) scan(ctx context.Context, now time.Time, settled bool) []task {
	var list corev1.NodeList
	if err := m.objects.List(ctx, &list, client.HasLabels{edgeLabel}, client.UnsafeDisableDeepCopy); err != nil {
		m.log.Warn("nodes not listed", zap.Error(err))
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var due []task
	online := 0
	known := make(map[string]struct{}, len(list.Items))
	for i := range list.Items {
		node := &list.Items[i]
		known[node.Name] = struct{}{}
		s := m.nodes[node.Name]
		if s == nil {
			s = &seen{}
			m.nodes[node.Name] = s
		}
		if !m.owner.Owns(node.Name) {
			s.renewed = time.Time{}
			continue
		}
		if now.Sub(s.beat) <= silence {
			online++
		}
		if t := s.decide(node, now, settled); t != nil && !s.writing {
			s.writing = true
			due = append(due, *t)
		}
	}
	for name, s := range m.nodes {
		if _, ok := known[name]; ok {
			continue
		}
		switch {
		case now.Sub(s.beat) > silence:
			delete(m.nodes, name)
		case !s.writing && m.owner.Owns(name) && m.objects.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{}) == nil:
			// It beats, so its credentials are a gateway's, and it has registered.
			s.writing = true
			due = append(due, task{node: name, adopt: true})
		}
	}
	m.online.Set(float64(online))
	return due
}

// decide says what one owned node needs; it changes nothing.
func (s *seen) decide(node *corev1.Node, now time.Time, settled bool) *task {
	fresh := now.Sub(s.beat) <= silence
	t := task{node: node.Name, renew: fresh && s.healthy && now.Sub(s.renewed) >= renewEvery}
	want := corev1.NodeCondition{Type: Connected, Status: corev1.ConditionTrue, Reason: reasonBeats, Message: "heartbeats arrive over the link"}
	switch {
	case fresh && s.healthy:
	case fresh:
		want.Reason, want.Message = reasonUnwell, "heartbeats arrive over the link, but the kubelet has not renewed its lease"
	case !settled:
		return nil
	default:
		want.Status, want.Reason = corev1.ConditionFalse, reasonSilent
		want.Message = "no heartbeat; the gateway goes on by itself with what it has"
		if !s.beat.IsZero() {
			want.Message = "no heartbeat since " + s.beat.UTC().Format(time.RFC3339) + "; the gateway goes on by itself with what it has"
		}
	}
	if have := conditionOf(node); have == nil || have.Status != want.Status || have.Reason != want.Reason {
		t.condition = &want
	}
	if !t.renew && t.condition == nil {
		return nil
	}
	return &t
}

func conditionOf(node *corev1.Node) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == Connected {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

func (m *Monitor) write(ctx context.Context, t task) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	now := time.Now()
	var renewed bool
	if t.adopt {
		if err := m.adopt(ctx, t.node); err != nil {
			m.log.Warn("node not labelled", zap.String("node", t.node), zap.Error(err))
		} else {
			m.log.Info("node labelled as a gateway", zap.String("node", t.node))
		}
	}
	if t.renew {
		if err := m.renew(ctx, t.node, now); err != nil {
			m.log.Warn("lease not renewed", zap.String("node", t.node), zap.Error(err))
		} else {
			renewed = true
		}
	}
	if t.condition != nil {
		if err := m.tell(ctx, t.node, *t.condition, now); err != nil {
			m.log.Warn("condition not written", zap.String("node", t.node), zap.Error(err))
		} else {
			m.log.Info("node condition changed", zap.String("node", t.node), zap.String("connected", string(t.condition.Status)), zap.String("reason", t.condition.Reason))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.nodes[t.node]; s != nil {
		s.writing = false
		if renewed {
			s.renewed = now
		}
	}
}

// renew writes the Lease blindly: one write, no read.
func (m *Monitor) renew(ctx context.Context, node string, now time.Time) error {
	spec := coordinationv1.LeaseSpec{
		HolderIdentity: ptr.To(node), LeaseDurationSeconds: ptr.To[int32](leaseDuration), RenewTime: &metav1.MicroTime{Time: now},
	}
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	leases := m.kube.CoordinationV1().Leases(leaseNamespace)
	_, err = leases.Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if !apierrors.IsNotFound(err) {
		return err
	}
	_, err = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: leaseNamespace}, Spec: spec},
		metav1.CreateOptions{FieldManager: fieldManager})
	return err
}

func (m *Monitor) tell(ctx context.Context, node string, condition corev1.NodeCondition, now time.Time) error {
	condition.LastTransitionTime, condition.LastHeartbeatTime = metav1.NewTime(now), metav1.NewTime(now)
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{condition}}})
	if err != nil {
		return fmt.Errorf("condition: %w", err)
	}
	_, err = m.kube.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	return err
}

// adopt puts the labels of a gateway on a Node.
func (m *Monitor) adopt(ctx context.Context, node string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{edgeLabel: "", agentLabel: ""}}})
	if err != nil {
		return fmt.Errorf("labels: %w", err)
	}
	_, err = m.kube.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	return err
}
