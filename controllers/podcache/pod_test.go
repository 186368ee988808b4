package podcache_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/podcache"
)

// filler fills each field of an object. Share is how many of the optional values are set, in percent.
type filler struct {
	*rand.Rand
	share int
}

func (f filler) set() bool { return f.IntN(100) < f.share }

func (f filler) fill(v reflect.Value) {
	switch p := v.Addr().Interface().(type) {
	case *metav1.Time:
		*p = metav1.Unix(1_700_000_000+f.Int64N(1_000_000), 0)
		return
	case *metav1.FieldsV1:
		*p = *metav1.NewFieldsV1(`{"f:spec":{}}`)
		return
	case *resource.Quantity:
		*p = resource.MustParse(fmt.Sprintf("%dm", f.IntN(1_000_000)))
		return
	case *intstr.IntOrString:
		*p = intstr.FromInt32(f.Int32N(1000))
		if f.set() {
			*p = intstr.FromString(fmt.Sprint("port-", f.IntN(9)))
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for _, field := range v.Fields() {
			f.fill(field)
		}
	case reflect.Pointer:
		if f.set() {
			v.Set(reflect.New(v.Type().Elem()))
			f.fill(v.Elem())
		}
	case reflect.Slice:
		if f.set() {
			v.Set(reflect.MakeSlice(v.Type(), 1+f.IntN(2), 3))
			for i := range v.Len() {
				f.fill(v.Index(i))
			}
		}
	case reflect.Map:
		if f.set() {
			v.Set(reflect.MakeMap(v.Type()))
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			f.fill(key)
			f.fill(value)
			v.SetMapIndex(key, value)
		}
	case reflect.String:
		if f.set() {
			v.SetString(fmt.Sprint("s-", f.IntN(1_000_000)))
		}
	case reflect.Bool:
		v.SetBool(f.set())
	case reflect.Int32, reflect.Int64:
		if f.set() {
			v.SetInt(int64(f.Int32()))
		}
	case reflect.Uint8:
		v.SetUint(uint64(f.IntN(256)))
	default:
		panic(fmt.Sprint("a pod has a new type of field: ", v.Type()))
	}
}

// TestPod_UnpacksToTheSame: a gateway must get the same bytes of a pod, and the same digest, as from a cache that does not
// pack it, whatever fields Kubernetes adds to pods. Otherwise an upgrade of cloudcore publishes every pod of the fleet again.
func TestPod_UnpacksToTheSame(t *testing.T) {
	for seed := range 400 {
		f := filler{rand.New(rand.NewPCG(uint64(seed), 0)), 100 - seed/4}
		sent := &corev1.Pod{}
		f.fill(reflect.ValueOf(sent).Elem())
		sent.TypeMeta = metav1.TypeMeta{} // a cache removes it
		received := decodeProtobuf(t, sent)
		want := received.DeepCopy()
		want.ManagedFields = nil
		packed, err := podcache.Pack(received)
		if err != nil {
			t.Fatal(err)
		}
		got, err := packed.Whole()
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(want, got) {
			t.Fatalf("seed %d (-want +got):\n%s", seed, cmp.Diff(want, got))
		}
		if want, got := encodeJSON(t, want), encodeJSON(t, got); want != got {
			t.Fatalf("seed %d: JSON differs:\n%s\n%s", seed, want, got)
		}
	}
}

// TestPod_UnpacksFromJSON: the same for a pod that a client read as JSON.
func TestPod_UnpacksFromJSON(t *testing.T) {
	for seed := range 100 {
		f := filler{rand.New(rand.NewPCG(uint64(seed), 1)), 100 - seed}
		sent := &corev1.Pod{}
		f.fill(reflect.ValueOf(sent).Elem())
		sent.TypeMeta, sent.ManagedFields = metav1.TypeMeta{}, nil
		want := encodeJSON(t, sent)
		received := &corev1.Pod{}
		if err := json.Unmarshal([]byte(want), received); err != nil {
			t.Fatal(err)
		}
		packed, err := podcache.Pack(received)
		if err != nil {
			t.Fatal(err)
		}
		got, err := packed.Whole()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, encodeJSON(t, got)); diff != "" {
			t.Fatalf("seed %d (-want +got):\n%s", seed, diff)
		}
	}
}

func decodeProtobuf(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	data, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	decoded := &corev1.Pod{}
	if err := decoded.Unmarshal(data); err != nil {
		t.Fatal(err)
	}
	return decoded
}

func encodeJSON(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	data, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestPod_Facts: what is read without unpacking is what the pod has.
func TestPod_Facts(t *testing.T) {
	for name, tt := range map[string]struct {
		change              func(*corev1.Pod)
		ended, mirror, host bool
	}{
		"running":   {func(*corev1.Pod) {}, false, false, false},
		"succeeded": {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, true, false, false},
		"failed":    {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, true, false, false},
		"mirror":    {func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }, false, true, false},
		"host":      {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, false, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", UID: "u", ResourceVersion: "7", CreationTimestamp: metav1.Unix(100, 0), ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}}}
			pod.Spec.NodeName, pod.Spec.ServiceAccountName = "gw", "web"
			pod.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}
			tt.change(pod)
			p, ok := podcache.Of(pod)
			if !ok {
				t.Fatal("not packed")
			}
			if len(pod.ManagedFields) != 1 {
				t.Error("Of changed the caller's pod")
			}
			identity, err := meta.Accessor(p)
			if err != nil {
				t.Fatal(err)
			}
			if got := identity.GetCreationTimestamp(); !got.Equal(&pod.CreationTimestamp) {
				t.Errorf("created at %v", got)
			}
			got := []string{identity.GetNamespace(), identity.GetName(), string(identity.GetUID()), identity.GetResourceVersion(), p.Namespace(), p.Name(), p.UID(), p.Version(), p.Node(), p.Account()}
			if diff := cmp.Diff([]string{"n", "p", "u", "7", "n", "p", "u", "7", "gw", "web"}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"10.0.0.1", "fd00::1"}, p.Addresses()); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
			if p.Ended() != tt.ended || p.Mirror() != tt.mirror || p.HostNetwork() != tt.host || p.MayHaveAnnotation(corev1.MirrorPodAnnotationKey) != tt.mirror {
				t.Errorf("ended %v, mirror %v, host network %v", p.Ended(), p.Mirror(), p.HostNetwork())
			}
		})
	}
}

func TestPod_MarkedNotReady(t *testing.T) {
	const yes, no = corev1.ConditionTrue, corev1.ConditionFalse
	for _, tt := range []struct {
		containers, ready corev1.ConditionStatus
		reason            string
		want              bool
	}{
		{yes, no, "", true},
		{yes, yes, "", false},
		{yes, no, "ReadinessGatesNotReady", false},
		{no, no, "", false},
		{no, no, "ContainersNotReady", false},
		{"", no, "", false},
		{yes, corev1.ConditionUnknown, "", false},
	} {
		pod := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: tt.ready, Reason: tt.reason}, {Type: corev1.ContainersReady, Status: tt.containers},
		}}}
		if p, ok := podcache.Of(pod); !ok || p.MarkedNotReady() != tt.want {
			t.Errorf("%+v: marked is not %v", tt, tt.want)
		}
	}
}

// TestTransform: each kind loses its managedFields, a pod is packed once, and nothing else changes.
func TestTransform(t *testing.T) {
	fields := []metav1.ManagedFieldsEntry{{Manager: "m"}}
	first, err := podcache.Transform(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", ManagedFields: fields}})
	if err != nil {
		t.Fatal(err)
	}
	if _, packed := first.(*podcache.Pod); !packed {
		t.Fatalf("a pod is a %T", first)
	}
	if again, err := podcache.Transform(first); err != nil || again != first {
		t.Errorf("packed again: %v, %v", again, err)
	}
	other, err := podcache.Transform(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c", ManagedFields: fields}, Data: map[string]string{"a": "b"}})
	if diff := cmp.Diff(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"a": "b"}}, other); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// TestCache_RefusesWholePods: who would read packed pods as whole ones is told so, and does not see none.
func TestCache_RefusesWholePods(t *testing.T) {
	if err := (&podcache.Cache{}).List(t.Context(), &corev1.PodList{}); err == nil {
		t.Error("pods are listed")
	}
	none := func(*corev1.Pod) {}
	if _, err := controllers.Follow(t.Context(), &podcache.Cache{}, &corev1.Pod{}, none, none); err == nil {
		t.Error("whole pods are followed")
	}
}
