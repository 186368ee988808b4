package groups

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/groups/assignment"
	"github.com/frond-edge/frond/controllers/groups/membership"
)

// evictor evicts the pods of groups from Nodes that have left.
type evictor struct {
	guard  Guard
	kube   kubernetes.Interface
	groups groupClient
	view   *membership.View
	pods   *podIndex
	// node returns a Node of the cache, nil if there is none.
	node func(name string) *corev1.Node
	// requeueAfter evaluates a group again after a time.
	requeueAfter func(group string, after time.Duration)
	metrics      groupMetrics
	log          *zap.Logger

	mu sync.Mutex
	// leaving is when the Nodes that have left each group were first the same; guarded by mu.
	leaving map[string]leaving
}

// leaving is a set of Nodes that have left a group.
type leaving struct {
	token string
	since time.Time
}

// misplacedPods returns the pods of a group on Nodes that have left it and no longer have its label. waiting: there are others, on Nodes
// that still have it, and new pods could come to those.
func (e *evictor) misplacedPods(o *apps.NodeGroup, a assignment.Assignment) (m misplaced, waiting bool) {
	if keepsMembers(o) {
		return newMisplaced(nil, len(a.Members(o.Name))), false
	}
	pods := e.pods.misplaced(o.Name, func(node string) bool {
		if group, _ := a.GroupOf(node); group == o.Name {
			return false
		}
		object := e.node(node)
		switch {
		case object == nil || object.DeletionTimestamp != nil:
			return false // Kubernetes removes its pods
		case object.Labels[names.LabelNodeGroup] == o.Name:
			waiting = true
			return false
		}
		return true
	})
	m = newMisplaced(pods, len(a.Members(o.Name)))
	m.deleted, m.confirmed = o.DeletionTimestamp != nil, o.Annotations[names.AnnotationConfirmEvictions]
	return m, waiting
}

// keepsMembers reports whether a group's labels select no Node because they must not decide. That is a mistake, or a manifest made for KubeEdge, and
// evicts nothing: Nodes that have the label of the group keep it, and their pods.
func keepsMembers(o *apps.NodeGroup) bool {
	return o.DeletionTimestamp == nil && len(assignment.GroupOf(o).UntrustedLabels()) > 0
}

// settled reports whether the Nodes that have left a group have been the same for settleTime and have all lost its label, so that one sweep
// is evaluated as one; if not, the group is enqueued for then.
func (e *evictor) settled(group string, m misplaced, waiting bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if waiting {
		delete(e.leaving, group)
		e.requeueAfter(group, staleRetry)
		return false
	}
	if len(m.pods) == 0 {
		delete(e.leaving, group)
		return true
	}
	now := time.Now()
	last := e.leaving[group]
	if token := m.token(); last.token != token {
		last = leaving{token: token, since: now}
		e.leaving[group] = last
	}
	left := settleTime - now.Sub(last.since)
	if left > 0 {
		e.requeueAfter(group, left)
	}
	return left <= 0
}

// evictMisplaced evicts the pods of a group that are on Nodes outside of it, and returns why some of them stay.
func (e *evictor) evictMisplaced(ctx context.Context, o *apps.NodeGroup, m misplaced) (hold, error) {
	if len(m.pods) == 0 {
		return hold{}, nil
	}
	if m.mass(e.guard) && !e.guardElapsed(o) {
		return hold{names.ReasonMassLeave, m.holdMessage(o.Name)}, nil
	}
	blocked, left := 0, map[string]bool{}
	for _, p := range m.pods {
		is, checked := left[p.node]
		if !checked {
			var err error
			if is, err = e.hasLeft(ctx, o, p.node); err != nil {
				return hold{}, err
			}
			left[p.node] = is
		}
		if !is {
			e.requeueAfter(o.Name, staleRetry) // the cache will tell
			continue
		}
		done, err := e.evictPod(ctx, o, p)
		if err != nil {
			return hold{}, err
		}
		if !done {
			blocked++
		}
	}
	if blocked > 0 {
		e.requeueAfter(o.Name, budgetRetry)
		return hold{names.ReasonDisruptionBudget, fmt.Sprintf("%d pods on nodes that have left the group stay until their PodDisruptionBudgets permit their eviction", blocked)}, nil
	}
	return hold{}, nil
}

// guardElapsed reports whether the evictions of a group were held for as long as the guard holds them without a confirmation.
func (e *evictor) guardElapsed(o *apps.NodeGroup) bool {
	if e.guard.After <= 0 {
		return false
	}
	for _, condition := range o.Status.Conditions {
		if condition.Type == names.ConditionEvictionsHeld && condition.Status == metav1.ConditionTrue && condition.Reason == names.ReasonMassLeave {
			rest := e.guard.After - time.Since(condition.LastTransitionTime.Time)
			if rest > 0 {
				e.requeueAfter(o.Name, rest)
			}
			return rest <= 0
		}
	}
	return false
}

// hasLeft reads a group and a Node from the apiserver and reports whether the Node is not in the group: the group no longer asks for it, or
// it has another one that does.
func (e *evictor) hasLeft(ctx context.Context, o *apps.NodeGroup, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	live, err := e.groups.get(ctx, o.Name)
	if err != nil {
		return false, fmt.Errorf("read the group before an eviction: %w", err)
	}
	node, err := e.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil // Kubernetes removes its pods
	case err != nil:
		return false, fmt.Errorf("read node %s before an eviction: %w", name, err)
	}
	if live.UID != o.UID || node.Labels[names.LabelNodeGroup] == o.Name || keepsMembers(live) {
		return false, nil
	}
	if !assignment.GroupOf(live).Selects(assignment.NodeOf(node)) {
		return true, nil
	}
	holder, member := e.view.GroupOf(name)
	if !member || holder == o.Name {
		return false, nil
	}
	other, err := e.groups.get(ctx, holder)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the other group before an eviction: %w", err)
	}
	return assignment.GroupOf(other).Selects(assignment.NodeOf(node)), nil
}

// evictPod evicts exactly this pod. done is false if its disruption budget does not permit it now.
func (e *evictor) evictPod(ctx context.Context, o *apps.NodeGroup, p misplacedPod) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: p.key.Namespace, Name: p.key.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.uid))},
	}
	switch err := e.kube.CoreV1().Pods(p.key.Namespace).EvictV1(ctx, eviction); {
	case apierrors.IsTooManyRequests(err):
		e.metrics.evictions.WithLabelValues("blocked").Inc()
		return false, nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // it is gone, or another pod has its name
		return true, nil
	case err != nil:
		return false, fmt.Errorf("evict pod %s: %w", p.key, err)
	}
	e.metrics.evictions.WithLabelValues("evicted").Inc()
	e.log.Info("pod evicted: its node has left the group", zap.String("group", o.Name), zap.String("node", p.node), zap.Stringer("pod", p.key))
	return true, nil
}
