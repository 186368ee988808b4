package identity

import (
	"fmt"
	"runtime"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/identity"
)

// BenchmarkRecords measures the memory of a node's record when there are 100,000.
func BenchmarkRecords(b *testing.B) {
	const nodes = 100_000
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	for b.Loop() {
		before := heap()
		r := NewRecords(nil)
		store := reflectorStore{r, func(_, _ *Record) {}}
		for i := range nodes {
			o := &identity.NodeIdentity{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("gateway-%06d", i)}}
			o.Spec.Key = fmt.Sprintf("U%055d", i)
			o.Spec.Expires = metav1.Now()
			if err := store.Add(o); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric((heap()-before)/nodes, "B/node")
		runtime.KeepAlive(r)
	}
}
