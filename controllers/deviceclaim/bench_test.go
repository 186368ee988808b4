package deviceclaim_test

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/deviceclaim"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/objectcache"
)

// fleet has claimed devices, of which some wait for a gateway that has a link.
func fleet(count, waiting int) map[schema.GroupVersionKind]runtime.Object {
	old := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "old", Labels: map[string]string{names.LabelEdge: ""}}}
	old.Status.Conditions = []corev1.NodeCondition{{Type: names.ConditionConnected, Status: corev1.ConditionTrue}}
	var all, statuses []unstructured.Unstructured
	for i := range count {
		object := func(kind string, rest map[string]any) unstructured.Unstructured {
			rest["apiVersion"], rest["kind"] = devices.GroupVersion().String(), kind
			rest["metadata"] = map[string]any{
				"namespace": "default", "name": fmt.Sprint("device-", i), "uid": fmt.Sprint("uid-", i), "resourceVersion": "1",
				"annotations": map[string]any{names.AnnotationDeviceHolder: "old"},
			}
			return unstructured.Unstructured{Object: rest}
		}
		node := "old"
		if i < waiting {
			node = "new"
		}
		all = append(all, object(devices.DeviceKind, map[string]any{"spec": map[string]any{"nodeName": node}}))
		statuses = append(statuses, object(devices.DeviceStatusKind, map[string]any{"status": map[string]any{"state": "online"}}))
	}
	kind := devices.GroupVersion().WithKind
	return map[schema.GroupVersionKind]runtime.Object{
		corev1.SchemeGroupVersion.WithKind("Node"): &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.Node{old}},
		kind(devices.DeviceKind):                   objectcache.Unstructured(all), kind(devices.DeviceStatusKind): objectcache.Unstructured(statuses),
	}
}

// BenchmarkReconciler_Scan: what each cloudcore does every second, with 10,000 devices.
func BenchmarkReconciler_Scan(b *testing.B) {
	for _, waiting := range []int{0, 100} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			served := objectcache.Start(b, fleet(10000, waiting))
			kube, err := dynamic.NewForConfig(&rest.Config{}) // nothing is written
			kit.Must(b, err)
			confirmations := &confirmations{removed: map[string]bool{}}
			r := deviceclaim.New(served, served, kube, confirmations, owner{}, prometheus.NewRegistry(), zap.NewNop())
			kit.Must(b, r.Scan(b.Context())) // it begins to follow the kinds
			b.ReportAllocs()
			for b.Loop() {
				kit.Must(b, r.Scan(b.Context()))
			}
		})
	}
}
