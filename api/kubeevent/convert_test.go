package kubeevent_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/kubeevent"
)

// fillFields gives each exported field below v a non-zero value, so that the test detects a field that a later Kubernetes adds.
func fillFields(t *testing.T, v reflect.Value) {
	t.Helper()
	switch at := v.Addr().Interface().(type) {
	case *metav1.Time:
		*at = metav1.Unix(1700000000, 0)
		return
	case *metav1.MicroTime:
		*at = metav1.NewMicroTime(time.Unix(1700000001, 2000))
		return
	case *metav1.TypeMeta, *metav1.FieldsV1:
		return // the kind belongs to the form; it is not converted
	}
	switch v.Kind() {
	case reflect.Struct:
		for _, field := range v.Fields() {
			fillFields(t, field)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillFields(t, v.Elem())
	case reflect.String:
		v.SetString("text of " + v.Type().String())
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillFields(t, v.Index(0))
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"key": "value"}))
	default:
		t.Fatalf("no value for a %s", v.Type())
	}
}

func TestConversion_ChangesNothing(t *testing.T) {
	var core corev1.Event
	fillFields(t, reflect.ValueOf(&core).Elem())
	if diff := cmp.Diff(&core, kubeevent.ToCore(kubeevent.FromCore(&core))); diff != "" {
		t.Errorf("v1, there and back (-want +got):\n%s", diff)
	}
	var event eventsv1.Event
	fillFields(t, reflect.ValueOf(&event).Elem())
	if diff := cmp.Diff(&event, kubeevent.FromCore(kubeevent.ToCore(&event))); diff != "" {
		t.Errorf("events.k8s.io/v1, there and back (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&corev1.Event{}, kubeevent.ToCore(&eventsv1.Event{})); diff != "" {
		t.Errorf("an empty event (-want +got):\n%s", diff)
	}
}

// Two strings in one form differ only in their place, which a type alone does not show.
func TestConversion_PutsFieldsInPlace(t *testing.T) {
	got := kubeevent.ToCore(&eventsv1.Event{
		Reason: "reason", Note: "note", Action: "action", Type: "type", ReportingController: "controller", ReportingInstance: "instance",
		Regarding: corev1.ObjectReference{Name: "regarding"}, Related: &corev1.ObjectReference{Name: "related"},
		DeprecatedFirstTimestamp: metav1.Unix(1, 0), DeprecatedLastTimestamp: metav1.Unix(2, 0),
	})
	want := &corev1.Event{
		Reason: "reason", Message: "note", Action: "action", Type: "type", ReportingController: "controller", ReportingInstance: "instance",
		InvolvedObject: corev1.ObjectReference{Name: "regarding"}, Related: &corev1.ObjectReference{Name: "related"},
		FirstTimestamp: metav1.Unix(1, 0), LastTimestamp: metav1.Unix(2, 0),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
