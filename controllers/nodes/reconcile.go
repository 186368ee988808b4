package nodes

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/frond-edge/frond/api/names"
)

// writeTimeout bounds the writes for one node.
const writeTimeout = 10 * time.Second

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
	n, period := *known, m.leasePeriod()
	m.mu.Unlock()

	var errs []error
	if n.renewalDue {
		now := time.Now()
		err := m.writer.renewLease(ctx, object, now, m.leases.seconds(period))
		m.mu.Lock()
		if err == nil {
			known.leaseDue, known.renewalDue = m.leases.nextDue(n.leaseDue, now, period, rand.Float64()), false
		}
		m.mu.Unlock()
		errs = append(errs, err)
	}
	if n.connected && !hasGatewayLabels(object) {
		errs = append(errs, m.writer.labelNode(ctx, name))
	}
	errs = append(errs, m.reconcileConditions(ctx, known, &n, object))
	return errors.Join(errs...)
}

// reconcileConditions writes the conditions that differ from their wanted state.
func (m *Monitor) reconcileConditions(ctx context.Context, known, n *nodeHealth, object *corev1.Node) error {
	now := time.Now()
	m.mu.Lock()
	recorder := m.recorder
	m.mu.Unlock()
	changes := m.evaluator.conditionChanges(n, object, now)
	if len(changes) == 0 {
		return nil
	}
	if err := m.writer.writeConditions(ctx, object, changes, recorder); err != nil {
		return err
	}
	for _, c := range changes {
		if c.kind == names.ConditionUpToDate {
			m.mu.Lock()
			known.progressWritten = now
			m.mu.Unlock()
		}
	}
	return nil
}

func hasGatewayLabels(object *corev1.Node) bool {
	_, agent := object.Labels[names.LabelAgent]
	_, ok := object.Labels[names.LabelEdge]
	return ok && agent
}
