package desired_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// BenchmarkGraph measures a graph of 100,000 nodes with 10 pods each, where a pod needs two objects of its own and
// three that its namespace shares: the cost of an event must not grow with the number of nodes.
func BenchmarkGraph(b *testing.B) {
	for _, nodes := range []int{1_000, 100_000} {
		b.Run(fmt.Sprint(nodes, "-nodes"), func(b *testing.B) {
			before := heapBytes()
			g := desired.NewGraph()
			for n := range nodes {
				for p := range 10 {
					ns := fmt.Sprint("ns-", n%100)
					pod := coreKey("pods", ns, fmt.Sprint(n, "-", p))
					g.Refs[pod] = []wire.Key{
						coreKey("configmaps", ns, "kube-root-ca.crt"), coreKey("serviceaccounts", ns, "default"), coreKey("secrets", ns, "pull"),
						coreKey("configmaps", ns, pod.Name), coreKey("secrets", ns, pod.Name),
					}
					g.Place(pod, fmt.Sprint(n))
				}
			}
			size := g.Size()
			refs := g.Refs
			g.Refs = nil // the test's own
			used := heapBytes() - before
			g.Refs = refs
			i := 0
			for b.Loop() {
				n := i % nodes
				pod := coreKey("pods", fmt.Sprint("ns-", n%100), fmt.Sprint(n, "-", i%10))
				g.Place(pod, "")
				g.Place(pod, fmt.Sprint(n))
				i++
			}
			b.ReportMetric(float64(used)/float64(nodes)/10, "bytes/pod")
			b.ReportMetric(float64(size), "objects")
			runtime.KeepAlive(g)
		})
	}
}

// BenchmarkScopedEvent measures an event of a scoped kind under the engine's lock, where ten nodes have a scope on it
// and all others on another kind or namespace: the cost must not grow with the others.
func BenchmarkScopedEvent(b *testing.B) {
	for _, nodes := range []int{1_000, 100_000} {
		b.Run(fmt.Sprint(nodes, "-nodes"), func(b *testing.B) {
			event := desired.NewScopedEngine(nodes, func(node int) wire.Scope {
				s := wire.Scope{Group: "example.com", Version: "v1", Resource: "widgets", Namespace: "shop"}
				switch {
				case node < 5:
				case node < 10:
					s.Namespace = ""
				case node%2 == 0:
					s.Namespace = fmt.Sprint("ns-", node%100)
				default:
					s.Resource, s.Namespace = "gadgets", ""
				}
				return s
			})
			k := wire.Key{Group: "example.com", Resource: "widgets", Namespace: "shop", Name: "w"}
			for b.Loop() {
				event(k)
			}
		})
	}
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkUpdate measures the time from the start of an update of a ConfigMap at the apiserver until the hub has
// stored it for the node, one at a time.
func BenchmarkUpdate(b *testing.B) {
	w := newEngineEnv(b)
	w.createAccount("default")
	w.createConfigMap("cm", "start")
	node := w.createNode("a")
	w.createPod("one", node, mountConfigMap("cm"))
	w.startEngine(desired.Config{}, &fakeOwnership{}, "desired")
	k := coreKey("configmaps", w.ns, "cm")
	w.eventuallyMessage(node, k, "config map", isApplied)
	arrived := make(chan *nats.Msg, 16) // more than one update's messages
	sub, err := streamstest.Connect(b, w.hub).ChanSubscribe(subject.Of(subject.Desired, node, k), arrived)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	var took []time.Duration
	i := 0
	for b.Loop() {
		i++
		began := time.Now()
		w.setConfigMap("cm", fmt.Sprint(i))
		<-arrived
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
