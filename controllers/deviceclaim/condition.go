package deviceclaim

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/devicestatus"
)

// Message says why nobody drives a Device that has moved, and what to do.
func Message(device *unstructured.Unstructured) string {
	holder := devices.HolderOf(device)
	text := fmt.Sprintf("gateway %s may still drive the device: it has not confirmed that it has removed it", holder)
	if node := devices.AssignedNode(device); node != "" {
		text += fmt.Sprintf("; gateway %s gets the Device then", node)
	}
	return text + fmt.Sprintf(". If %s is known to be off: kubectl annotate device %s -n %s %s=%s", holder, device.GetName(), device.GetNamespace(), names.AnnotationForceMove, holder)
}

// showAll writes the conditions that are due, and removes those that are there and not due. One whose claim is about to pass on stays until it has.
func (r *Reconciler) showAll(ctx context.Context, nodes toolscache.Store, found indexes, all []decided) {
	show := func(device, status *unstructured.Unstructured, held bool) {
		// Without the right the claims go on.
		_ = r.attempts.try(fmt.Sprint("condition/", device.GetUID()), func() error { return r.show(ctx, device, status, held) })
	}
	for _, d := range all {
		if d.do == wait && d.away {
			show(d.device, devicestatus.Get(found.statuses, client.ObjectKeyFromObject(d.device).String()), true)
		}
	}
	marked, err := valuesOf(found.statuses, heldIndex)
	if err != nil {
		r.attempts.failed = err
	}
	for _, status := range marked {
		device := devicestatus.Get(found.devices, client.ObjectKeyFromObject(status).String())
		if device == nil {
			continue // it goes with its Device
		}
		if d, owned := r.decisionOf(device, nodes); owned && d.do != release && (d.do != wait || !d.away) {
			show(device, status, false)
		}
	}
}

// show makes the DeviceStatus say that another gateway holds the device, or say it no more. A status that is nil, or of an earlier Device of the name, is
// made by the gateway's first report.
func (r *Reconciler) show(ctx context.Context, device, status *unstructured.Unstructured, held bool) error {
	if status == nil {
		return r.create(ctx, device)
	}
	if owners := status.GetOwnerReferences(); len(owners) == 0 || owners[0].UID != device.GetUID() {
		return nil
	}
	conditions, changed := conditionsOf(status), false
	if held {
		conditions, changed = withHeld(conditions, heldCondition(device))
	} else {
		conditions, changed = withoutHeld(conditions)
	}
	if !changed {
		return nil
	}
	if !r.limiter.Allow() {
		return nil // with the next scan
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": status.GetUID(), "resourceVersion": status.GetResourceVersion()},
		"status":   map[string]any{"extensions": map[string]any{"frond": map[string]any{"conditions": conditions}}},
	})
	if err != nil {
		return fmt.Errorf("encode conditions: %w", err)
	}
	_, err = r.reports.Namespace(device.GetNamespace()).Patch(ctx, device.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: names.ManagerCloudcore})
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) { // those: the cache is behind, or the gateway has reported
		return fmt.Errorf("condition of device %s/%s: %w", device.GetNamespace(), device.GetName(), err)
	}
	return nil
}

// create makes the DeviceStatus of a held device that has never reported.
func (r *Reconciler) create(ctx context.Context, device *unstructured.Unstructured) error {
	if !r.limiter.Allow() {
		return nil // with the next scan
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": device.GetNamespace(), "name": device.GetName()},
		"status":   map[string]any{"extensions": map[string]any{"frond": map[string]any{"conditions": []any{heldCondition(device)}}}},
	}}
	object.SetGroupVersionKind(devices.GroupVersion().WithKind(devices.DeviceStatusKind))
	owner, yes := devices.GroupVersion().WithKind(devices.DeviceKind), true
	object.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: owner.GroupVersion().String(), Kind: owner.Kind, Name: device.GetName(), UID: device.GetUID(), Controller: &yes,
	}})
	_, err := r.reports.Namespace(device.GetNamespace()).Create(ctx, object, metav1.CreateOptions{FieldManager: names.ManagerCloudcore})
	if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("status of device %s/%s: %w", device.GetNamespace(), device.GetName(), err)
	}
	return nil
}

// heldCondition returns the condition of a held device.
func heldCondition(device *unstructured.Unstructured) map[string]any {
	return map[string]any{
		"type": devices.ConditionDelivered, "status": string(metav1.ConditionFalse), "reason": devices.ReasonHeldByOtherGateway, "message": Message(device),
		"observedGeneration": devices.SpecGeneration(device), "lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
	}
}

// conditionsOf returns the conditions that are objects; what else another writer has put there is left out.
func conditionsOf(status *unstructured.Unstructured) (conditions []any) {
	found, _, _ := unstructured.NestedFieldNoCopy(status.Object, "status", "extensions", "frond", "conditions")
	list, _ := found.([]any)
	for _, item := range list {
		if _, ok := item.(map[string]any); ok {
			conditions = append(conditions, item)
		}
	}
	return conditions
}

// withHeld returns conditions with the held one in the place of Delivered, and whether that says something else than before.
func withHeld(conditions []any, held map[string]any) (result []any, changed bool) {
	result = []any{held}
	changed = true
	for _, item := range conditions {
		c, _ := item.(map[string]any)
		if c["type"] != devices.ConditionDelivered {
			result = append(result, item)
			continue
		}
		changed = changed && (c["reason"] != held["reason"] || c["message"] != held["message"] || c["observedGeneration"] != held["observedGeneration"])
	}
	return result, changed
}

// withoutHeld returns conditions without the held one, and whether there was one.
func withoutHeld(conditions []any) (result []any, changed bool) {
	result = []any{}
	for _, item := range conditions {
		c, _ := item.(map[string]any)
		if c["type"] == devices.ConditionDelivered && c["reason"] == devices.ReasonHeldByOtherGateway {
			changed = true
			continue
		}
		result = append(result, item)
	}
	return result, changed
}
