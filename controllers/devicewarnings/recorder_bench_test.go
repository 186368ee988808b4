package devicewarnings_test

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

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/devicewarnings"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/objectcache"
)

// BenchmarkRecorder_Scan: what cloudcore does every 10 s, with 10,000 devices of 100 connected gateways that need no warning.
func BenchmarkRecorder_Scan(b *testing.B) {
	const gateways, each = 100, 100
	object := func(kind, name string, rest map[string]any) unstructured.Unstructured {
		rest["apiVersion"], rest["kind"] = devices.GroupVersion().String(), kind
		rest["metadata"] = map[string]any{"namespace": "default", "name": name, "uid": "uid-" + name, "resourceVersion": "1"}
		return unstructured.Unstructured{Object: rest}
	}
	nodes := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
	var all, statuses []unstructured.Unstructured
	for g := range gateways {
		node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("edge-%d", g)}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: names.ConditionConnected, Status: corev1.ConditionTrue}}
		nodes.Items = append(nodes.Items, node)
		for d := range each {
			name := fmt.Sprintf("device-%d-%d", g, d)
			all = append(all, object(devices.DeviceKind, name, map[string]any{"spec": map[string]any{"nodeName": node.Name, "deviceModelRef": map[string]any{"name": "model"}}}))
			status := object(devices.DeviceStatusKind, name, map[string]any{"status": map[string]any{"state": "online"}})
			status.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: devices.GroupVersion().String(), Kind: devices.DeviceKind, Name: name, UID: all[len(all)-1].GetUID()}})
			statuses = append(statuses, status)
		}
	}
	kind := devices.GroupVersion().WithKind
	served := objectcache.Start(b, map[schema.GroupVersionKind]runtime.Object{
		corev1.SchemeGroupVersion.WithKind("Node"): nodes, kind(devices.DeviceKind): objectcache.Unstructured(all),
		kind(devices.DeviceStatusKind): objectcache.Unstructured(statuses),
		kind(devices.DeviceModelKind):  objectcache.Unstructured([]unstructured.Unstructured{object(devices.DeviceModelKind, "model", map[string]any{})}),
	})
	r := devicewarnings.New(served, served, nil, owner{}, prometheus.NewRegistry(), zap.NewNop())
	kit.Must(b, r.Scan(b.Context())) // it begins to follow the kinds
	b.ReportAllocs()
	for b.Loop() {
		kit.Must(b, r.Scan(b.Context()))
	}
}
