package localapi_test

import (
	"fmt"
	"runtime"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

func heapBytes() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the first run only marks objects with finalisers
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// BenchmarkWatchByName measures a kubelet's watch of one ConfigMap, client and server together.
func BenchmarkWatchByName(b *testing.B) {
	g := newGateway(b, true)
	cms := g.newClient(true).CoreV1().ConfigMaps("default")
	var open []watch.Interface
	for i := range 1000 {
		g.deliverObjects(newConfigMap(fmt.Sprint("c", i), "1"))
	}
	before := heapBytes()
	n := 0
	for b.Loop() {
		w, err := cms.Watch(b.Context(), metav1.ListOptions{FieldSelector: fmt.Sprint("metadata.name=c", n%1000)})
		if err != nil {
			b.Fatal(err)
		}
		<-w.ResultChan()
		open = append(open, w)
		n++
	}
	b.StopTimer()
	b.ReportMetric(float64(heapBytes()-before)/float64(n), "B/watch")
	for _, w := range open {
		w.Stop()
	}
}

// BenchmarkPodStatus measures one status patch, synced to disk in the store; the outbox here costs nothing.
func BenchmarkPodStatus(b *testing.B) {
	g := newGateway(b, true)
	g.deliverObjects(newPod("web", "u1", "1"))
	pods := g.newClient(true).CoreV1().Pods("default")
	n := 0
	for b.Loop() {
		n++
		patch := fmt.Appendf(nil, `{"metadata":{"uid":"u1"},"status":{"message":"%d"}}`, n)
		if _, err := pods.Patch(b.Context(), "web", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGet measures one read of a ConfigMap, as by a kubelet with the change detection strategy Get.
func BenchmarkGet(b *testing.B) {
	g := newGateway(b, true)
	g.deliverObjects(newConfigMap("a", "1"))
	cms := g.newClient(true).CoreV1().ConfigMaps("default")
	for b.Loop() {
		if _, err := cms.Get(b.Context(), "a", metav1.GetOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}
