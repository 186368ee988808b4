package desired_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

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
