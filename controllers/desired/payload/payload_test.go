package payload_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired/payload"
)

// digestOf returns the digest of an object at its own node, and the JSON that would be sent.
func digestOf(o client.Object) (digest string, object []byte, err error) {
	p, err := payload.New(o.DeepCopyObject().(client.Object), false)
	if err == nil {
		err = p.Encode()
	}
	return p.Digest, p.Object, err
}

func TestPayload_DigestOfRelevantFields(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "n", ResourceVersion: "1", UID: "u"},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning},
		}
		change(p)
		return p
	}
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "1"}}
		change(n)
		return n
	}
	condition := func(kind corev1.PodConditionType) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: kind, Status: corev1.ConditionTrue}}
		}
	}
	same := func(*corev1.Pod) {}
	for name, tt := range map[string]struct {
		a, b    client.Object
		differs bool
	}{
		"pod version":             {pod(same), pod(func(p *corev1.Pod) { p.ResourceVersion = "2" }), false},
		"pod managed fields":      {pod(same), pod(func(p *corev1.Pod) { p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}} }), false},
		"pod running":             {pod(same), pod(func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1"; p.Status.Phase = "Pending" }), false},
		"pod ready":               {pod(same), pod(condition(corev1.PodReady)), false},
		"pod readiness gate":      {pod(same), pod(condition("example.com/gate")), true},
		"pod disrupted":           {pod(same), pod(condition(corev1.DisruptionTarget)), true},
		"pod failed by the cloud": {pod(same), pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), true},
		"pod deleted":             {pod(same), pod(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), true},
		"pod label":               {pod(same), pod(func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }), true},
		"pod spec":                {pod(same), pod(func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64) }), true},
		"node heartbeat": {node(func(*corev1.Node) {}), node(func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}}
		}), false},
		"node attached volume": {node(func(*corev1.Node) {}), node(func(n *corev1.Node) {
			n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "v"}}
		}), true},
		"node taint": {node(func(*corev1.Node) {}), node(func(n *corev1.Node) { n.Spec.Unschedulable = true }), true},
		"config map version": {
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}},
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "2"}}, false,
		},
		"config map data": {&corev1.ConfigMap{}, &corev1.ConfigMap{Data: map[string]string{"a": `"metadata":{`}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			a, _, err := digestOf(tt.a)
			if err != nil {
				t.Fatal(err)
			}
			b, object, err := digestOf(tt.b)
			if err != nil {
				t.Fatal(err)
			}
			if (a != b) != tt.differs {
				t.Errorf("differs: %v, want %v", a != b, tt.differs)
			}
			back := tt.b.DeepCopyObject().(client.Object)
			back.SetManagedFields(nil)
			want, err := json.Marshal(back)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(decodeJSON(t, want), decodeJSON(t, object)); diff != "" {
				t.Errorf("object (-want +got):\n%s", diff)
			}
		})
	}
}

func decodeJSON(t *testing.T, data []byte) (v map[string]any) {
	t.Helper()
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	return v
}

func TestDeletionReason(t *testing.T) {
	now, none, some := metav1.Now(), int64(0), int64(30)
	for name, tt := range map[string]struct {
		pod  corev1.Pod
		want wire.DeletionReason
	}{
		"running":     {corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &some}}, ""},
		"terminating": {corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}, wire.DeletionTerminating},
		"forced":      {corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now, DeletionGracePeriodSeconds: &none}}, ""},
		"with grace":  {corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now, DeletionGracePeriodSeconds: &some}}, wire.DeletionTerminating},
		"succeeded":   {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}, wire.DeletionPodEnded},
		"failed":      {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed}}, wire.DeletionPodEnded},
		"no grace":    {corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &none}}, wire.DeletionWithoutGrace},
		"static":      {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"kubernetes.io/config.mirror": "x"}}}, wire.DeletionWithoutGrace},
	} {
		if got := payload.DeletionReason(&tt.pod); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// A Device is published again when its users change it, not when somebody writes into its status what its gateway has reported.
// annotated returns an object with annotations.
func annotated(o *unstructured.Unstructured, keys ...string) *unstructured.Unstructured {
	annotations := map[string]string{}
	for _, key := range keys {
		annotations[key] = "x"
	}
	o.SetAnnotations(annotations)
	return o
}

func TestPayload_DigestOfDevices(t *testing.T) {
	device := func(generation int64, protocol string, status map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "devices.kubeedge.io/v1beta1", "kind": "Device", "metadata": map[string]any{"name": "a", "generation": generation},
			"spec": map[string]any{"protocol": map[string]any{"protocolName": protocol}}, "status": status,
		}}
	}
	first := device(1, "modbus", nil)
	for name, tt := range map[string]struct {
		b       *unstructured.Unstructured
		differs bool
	}{
		"a copy of its status":     {device(2, "modbus", map[string]any{"state": "ok", "twins": []any{map[string]any{"propertyName": "t"}}}), false},
		"another rule of reports":  {device(2, "modbus", map[string]any{"state": "ok", "reportToCloud": true}), true},
		"another protocol":         {device(2, "opcua", nil), true},
		"a claim":                  {annotated(device(1, "modbus", nil), names.AnnotationDeviceHolder, names.AnnotationForceMove), false},
		"another annotation":       {annotated(device(1, "modbus", nil), names.AnnotationDeviceHolder, "other"), true},
		"a new generation of same": {device(3, "modbus", nil), false},
	} {
		a, _, err := digestOf(first)
		if err != nil {
			t.Fatal(err)
		}
		b, _, err := digestOf(tt.b)
		if err != nil {
			t.Fatal(err)
		}
		if (a != b) != tt.differs {
			t.Errorf("%s: the digest differs: %t, want %t", name, a != b, tt.differs)
		}
	}
}

// What a tool or cloudcore copies into a Device's status is old as soon as it is there: a gateway, which knows better, does not get it.
func TestPayload_DeviceWithoutItsStatus(t *testing.T) {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "devices.kubeedge.io/v1beta1", "kind": "Device", "metadata": map[string]any{
			"name": "a", "generation": int64(7), "resourceVersion": "5", "annotations": map[string]any{names.AnnotationDeviceHolder: "n"},
		},
		"status": map[string]any{"reportToCloud": true, "reportCycle": int64(3), "state": "ok", "twins": []any{map[string]any{"propertyName": "t"}}},
	}}
	before := o.DeepCopy()
	p, err := payload.New(payload.ShallowCopy(o), false)
	if err == nil {
		err = p.Encode()
	}
	if err != nil {
		t.Fatal(err)
	}
	var sent map[string]any
	if err := json.Unmarshal(p.Object, &sent); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"apiVersion": "devices.kubeedge.io/v1beta1", "kind": "Device", "metadata": map[string]any{"name": "a", "generation": 7.0, "resourceVersion": "5"},
		"status": map[string]any{"reportToCloud": true, "reportCycle": 3.0},
	}
	if diff := cmp.Diff(want, sent); diff != "" {
		t.Errorf("sent (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, o); diff != "" {
		t.Errorf("the cache's object has changed:\n%s", diff)
	}
}
