package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Connected is the condition that says whether heartbeats of the node arrive.
const Connected corev1.NodeConditionType = "EdgeConnected"

const (
	// edgeLabel marks the Nodes that are gateways. NodeRestriction forbids a node to set it, so the cloud does, for a node
	// that has proved who it is by its heartbeat.
	edgeLabel = "node-role.kubernetes.io/edge"
	// agentLabel is the second of KubeEdge's two labels; users' manifests name either.
	agentLabel = "node-role.kubernetes.io/agent"
	// leaseSeconds is how long a renewal counts, as with a kubelet.
	leaseSeconds = 40
	// writeTimeout bounds the writes for one node.
	writeTimeout = 10 * time.Second

	fieldManager = "frond-cloudcore"
)

// errNoNode says that there is no Node object yet.
var errNoNode = errors.New("node has no Node object")

// Rules are the rights that cloudcore needs for this package.
func Rules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch", "patch"}},
		{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create", "patch"}},
	}
}

// link is what the condition says.
type link struct {
	status corev1.ConditionStatus
	reason string
}

// want is what the condition should say of a node; the zero link where it is too early to say anything.
func (n *node) want() link {
	switch {
	case n.connected && n.healthy:
		return link{corev1.ConditionTrue, "HeartbeatsArrive"}
	case n.connected:
		return link{corev1.ConditionTrue, "KubeletUnwell"}
	case n.lost:
		return link{corev1.ConditionFalse, "NoHeartbeat"}
	}
	return link{}
}

// present is what the condition says now.
func present(object *corev1.Node) link {
	for _, c := range object.Status.Conditions {
		if c.Type == Connected {
			return link{c.Status, c.Reason}
		}
	}
	return link{}
}

func (l link) message() string {
	switch l.reason {
	case "HeartbeatsArrive":
		return "heartbeats arrive over the link"
	case "KubeletUnwell":
		return "heartbeats arrive over the link, but the kubelet has not renewed its lease"
	}
	return "no heartbeat; the gateway goes on by itself with what it has"
}

// keep writes what is due for one node.
func (m *Monitor) keep(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	m.mu.Lock()
	known, object := m.nodes[name], m.cached(name)
	if known == nil || !m.owner.Owns(name) {
		m.mu.Unlock()
		return nil
	}
	if object == nil {
		known.renewing = false // the next heartbeat asks again
		if known.lost {
			m.forget(known)
		}
		m.mu.Unlock()
		return errNoNode
	}
	n := *known
	m.mu.Unlock()

	var errs []error
	if n.renewing {
		now := time.Now()
		err := m.renew(ctx, object, now)
		m.mu.Lock()
		if err == nil {
			known.renewed, known.renewing = now, false
		}
		m.mu.Unlock()
		errs = append(errs, err)
	}
	if n.connected && !labelled(object) {
		errs = append(errs, m.label(ctx, name))
	}
	if want := n.want(); want != (link{}) && want != present(object) {
		errs = append(errs, m.tell(ctx, name, want, present(object)))
	}
	return errors.Join(errs...)
}

// renew writes the Lease blindly, one write and no read: nobody else writes it, and two owners at a time both tell the
// truth.
func (m *Monitor) renew(ctx context.Context, object *corev1.Node, now time.Time) error {
	seconds, when := int32(leaseSeconds), metav1.NewMicroTime(now)
	spec := coordinationv1.LeaseSpec{HolderIdentity: &object.Name, LeaseDurationSeconds: &seconds, RenewTime: &when}
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return fmt.Errorf("encode the lease: %w", err)
	}
	leases := m.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	_, err = leases.Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsNotFound(err) {
		owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: object.Name, UID: object.UID}
		lease := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: object.Name, OwnerReferences: []metav1.OwnerReference{owner}}, Spec: spec,
		}
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{FieldManager: fieldManager})
	}
	if err != nil {
		return fmt.Errorf("renew the lease: %w", err)
	}
	m.writes.WithLabelValues("lease").Inc()
	return nil
}

func (m *Monitor) label(ctx context.Context, name string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"",%q:""}}}`, edgeLabel, agentLabel)
	_, err := m.kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return fmt.Errorf("label: %w", err)
	}
	m.writes.WithLabelValues("label").Inc()
	return nil
}

// tell writes the condition. Its transition is when the status changes, not the reason.
func (m *Monitor) tell(ctx context.Context, name string, want, was link) error {
	now := metav1.Now()
	condition := map[string]any{
		"type": Connected, "status": want.status, "reason": want.reason, "message": want.message(), "lastHeartbeatTime": now,
	}
	if want.status != was.status {
		condition["lastTransitionTime"] = now
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{condition}}})
	if err != nil {
		return fmt.Errorf("encode the condition: %w", err)
	}
	_, err = m.kube.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	if err != nil {
		return fmt.Errorf("condition: %w", err)
	}
	m.writes.WithLabelValues("condition").Inc()
	m.log.Info("node condition changed",
		zap.String("node", name), zap.String("connected", string(want.status)), zap.String("reason", want.reason))
	return nil
}

func labelled(object *corev1.Node) bool {
	_, agent := object.Labels[agentLabel]
	_, ok := object.Labels[edgeLabel]
	return ok && agent
}
