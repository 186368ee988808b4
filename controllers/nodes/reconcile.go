package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/identity"
)

const (
	// leaseSeconds is how long a renewal is valid, as with a kubelet.
	leaseSeconds = 40
	// writeTimeout bounds the writes for one node.
	writeTimeout = 10 * time.Second

	fieldManager = "frond-cloudcore"
)

// Rules returns the RBAC rules that cloudcore needs for this package.
func Rules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch", "patch"}},
		{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create", "patch"}},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}
}

// reconcileNode performs the writes that are due for one node.
func (m *Monitor) reconcileNode(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	m.mu.Lock()
	known, object := m.nodes[name], m.cachedNode(name)
	if known == nil || !m.owner.Owns(name) || !m.owner.LeaseValid() {
		if known != nil {
			known.renewalDue = false // the next heartbeat makes it due again
		}
		m.mu.Unlock()
		return nil
	}
	if object == nil {
		known.renewalDue = false // the next heartbeat makes it due again
		if known.lost {
			m.forgetNode(known)
		}
		m.mu.Unlock()
		return errNoNode
	}
	n := *known
	m.mu.Unlock()

	var errs []error
	if n.renewalDue {
		now := time.Now()
		err := m.renewLease(ctx, object, now)
		m.mu.Lock()
		if err == nil {
			known.leaseRenewed, known.renewalDue = now, false
		}
		m.mu.Unlock()
		errs = append(errs, err)
	}
	if n.connected && !hasGatewayLabels(object) {
		errs = append(errs, m.labelNode(ctx, name))
	}
	errs = append(errs, m.reconcileConditions(ctx, known, &n, object))
	return errors.Join(errs...)
}

// renewLease writes the Lease without reading it first, as one write. There is no other writer, and two owners at a
// time both write valid renewals.
func (m *Monitor) renewLease(ctx context.Context, object *corev1.Node, now time.Time) error {
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

func (m *Monitor) labelNode(ctx context.Context, name string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"",%q:""}}}`, identity.EdgeLabel, identity.AgentLabel)
	_, err := m.kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return fmt.Errorf("label: %w", err)
	}
	m.writes.WithLabelValues("label").Inc()
	return nil
}

func hasGatewayLabels(object *corev1.Node) bool {
	_, agent := object.Labels[identity.AgentLabel]
	_, ok := object.Labels[identity.EdgeLabel]
	return ok && agent
}
