package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"github.com/frond-edge/frond/api/names"
)

// nodeWriter writes what a Monitor decides: Leases, labels and conditions.
type nodeWriter struct {
	kube   kubernetes.Interface
	writes *prometheus.CounterVec
	log    *zap.Logger
}

// renewLease writes the Lease, valid for some seconds, without reading it first, as one write. There is no other writer, and two
// owners at a time both write valid renewals.
func (w *nodeWriter) renewLease(ctx context.Context, object *corev1.Node, now time.Time, seconds int32) error {
	when := metav1.NewMicroTime(now)
	spec := coordinationv1.LeaseSpec{HolderIdentity: &object.Name, LeaseDurationSeconds: &seconds, RenewTime: &when}
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return fmt.Errorf("encode the lease: %w", err)
	}
	leases := w.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	_, err = leases.Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: names.ManagerCloudcore})
	if apierrors.IsNotFound(err) {
		owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: object.Name, UID: object.UID}
		lease := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: object.Name, OwnerReferences: []metav1.OwnerReference{owner}}, Spec: spec,
		}
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{FieldManager: names.ManagerCloudcore})
	}
	if err != nil {
		return fmt.Errorf("renew the lease: %w", err)
	}
	w.writes.WithLabelValues("lease").Inc()
	return nil
}

// labelNode sets the labels of a gateway.
func (w *nodeWriter) labelNode(ctx context.Context, name string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"",%q:""}}}`, names.LabelEdge, names.LabelAgent)
	_, err := w.kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: names.ManagerCloudcore})
	if err != nil {
		return fmt.Errorf("label: %w", err)
	}
	w.writes.WithLabelValues("label").Inc()
	return nil
}

// writeConditions writes conditions in one request. The transition time changes with the status, not with the reason.
func (w *nodeWriter) writeConditions(ctx context.Context, object *corev1.Node, changes []conditionChange, recorder record.EventRecorder) error {
	now := metav1.Now()
	conditions := make([]any, 0, len(changes))
	for _, c := range changes {
		condition := map[string]any{
			"type": c.kind, "status": c.want.status, "reason": c.want.reason, "message": c.message, "lastHeartbeatTime": now,
		}
		if c.want.status != c.was.status {
			condition["lastTransitionTime"] = now
		}
		conditions = append(conditions, condition)
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": conditions}})
	if err != nil {
		return fmt.Errorf("encode the conditions: %w", err)
	}
	_, err = w.kube.CoreV1().Nodes().Patch(ctx, object.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: names.ManagerCloudcore}, "status")
	if err != nil {
		return fmt.Errorf("conditions: %w", err)
	}
	for _, c := range changes {
		w.writes.WithLabelValues("condition").Inc()
		recordConditionEvent(recorder, object, c)
		w.log.Info("node condition changed", zap.String("node", object.Name), zap.String("condition", string(c.kind)),
			zap.String("status", string(c.want.status)), zap.String("reason", c.want.reason))
	}
	return nil
}

// recordConditionEvent records an event about a change of status; the first heartbeat of a new node is none.
func recordConditionEvent(recorder record.EventRecorder, object *corev1.Node, c conditionChange) {
	if recorder == nil || c.was.status == "" || c.was.status == c.want.status {
		return
	}
	switch {
	case c.kind == names.ConditionConnected && c.want.status == corev1.ConditionTrue:
		recorder.Event(object, corev1.EventTypeNormal, names.EventConnected, c.message)
	case c.kind == names.ConditionConnected:
		recorder.Event(object, corev1.EventTypeWarning, names.EventDisconnected, c.message)
	case c.want.status == corev1.ConditionFalse:
		recorder.Event(object, corev1.EventTypeWarning, names.EventBehind, c.message)
	case c.was.status == corev1.ConditionFalse && c.want.status == corev1.ConditionTrue:
		recorder.Event(object, corev1.EventTypeNormal, names.EventUpToDate, c.message)
	}
}
