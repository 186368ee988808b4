package devicestatus_test

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/devicestatus"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/objectcache"
)

// fleet has devices on gateways, of which some are away; the statuses of their devices are marked.
func fleet(gateways, devicesEach, away int) map[schema.GroupVersionKind]runtime.Object {
	var all, statuses []unstructured.Unstructured
	nodes := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
	for g := range gateways {
		node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("edge-%d", g)}}
		connected, state := corev1.ConditionTrue, map[string]any{"state": "online"}
		if g < away {
			connected = corev1.ConditionFalse
			state = map[string]any{"state": devicestatus.StateUnknown, "extensions": map[string]any{"frond": map[string]any{"state": map[string]any{"reason": "GatewayNotConnected"}}}}
		}
		node.Status.Conditions = []corev1.NodeCondition{{Type: names.ConditionConnected, Status: connected, LastTransitionTime: metav1.NewTime(time.Unix(1, 0))}}
		nodes.Items = append(nodes.Items, node)
		for d := range devicesEach {
			object := func(kind string, rest map[string]any) unstructured.Unstructured {
				rest["apiVersion"], rest["kind"] = devices.GroupVersion().String(), kind
				rest["metadata"] = map[string]any{"namespace": "default", "name": fmt.Sprintf("device-%d-%d", g, d), "uid": fmt.Sprintf("uid-%d-%d", g, d), "resourceVersion": "1"}
				return unstructured.Unstructured{Object: rest}
			}
			all = append(all, object(devices.DeviceKind, map[string]any{"spec": map[string]any{"nodeName": node.Name}}))
			statuses = append(statuses, object(devices.DeviceStatusKind, map[string]any{"status": state}))
		}
	}
	kind := devices.GroupVersion().WithKind
	return map[schema.GroupVersionKind]runtime.Object{
		corev1.SchemeGroupVersion.WithKind("Node"): nodes, kind(devices.DeviceKind): objectcache.Unstructured(all), kind(devices.DeviceStatusKind): objectcache.Unstructured(statuses),
	}
}

// BenchmarkAbsence_Scan: what cloudcore does every 5 s, with 10,000 devices of 100 gateways.
func BenchmarkAbsence_Scan(b *testing.B) {
	for _, away := range []int{0, 10, 100} {
		b.Run(fmt.Sprintf("away=%d", away), func(b *testing.B) {
			served := objectcache.Start(b, fleet(100, 100, away))
			a := devicestatus.NewAbsence(nil, served, served, owner{}, zap.NewNop())
			kit.Must(b, a.Scan(b.Context())) // it begins to follow the kinds
			b.ReportAllocs()
			for b.Loop() {
				kit.Must(b, a.Scan(b.Context()))
			}
		})
	}
}
