package desired_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/test/kit"
)

const (
	takeoverNodes   = 2000
	takeoverPods    = 10
	takeoverChanges = 20
)

// BenchmarkTakeover measures a takeover of 2,000 nodes with 10 pods each, where a read of what the stream holds for a node
// takes 5 ms: how long the changes of 20 nodes take that are made right after it, and how long the loads of all nodes.
func BenchmarkTakeover(b *testing.B) {
	h := startHeir(b, takeoverNodes, nil)
	pods := h.source(podOn("", ""))
	changed := map[string]*corev1.Pod{}
	for i, node := range h.nodes {
		for j := range takeoverPods {
			pod := podOn(node, fmt.Sprintf("%s-pod-%d", node, j))
			pods.Add(pod)
			if j == 0 && i%(takeoverNodes/takeoverChanges) == 0 {
				changed[pod.Name] = pod
			}
		}
	}
	h.stream.release()
	h.takeOver()
	h.awaitSnapshots()
	arrived := make(chan string, len(changed))
	h.stream.mu.Lock()
	h.stream.delay = 5 * time.Millisecond
	h.stream.onPublish = func(m wire.Message) {
		if changed[m.Key.Name] != nil {
			arrived <- m.Key.Name
		}
	}
	h.stream.mu.Unlock()
	var took, all []time.Duration
	for round := 0; b.Loop(); round++ {
		h.loseAll()
		began := time.Now()
		h.takeOver()
		for _, pod := range changed {
			next := pod.DeepCopy()
			next.Labels = map[string]string{"round": fmt.Sprint(round)}
			pods.Modify(next)
		}
		for range changed {
			kit.Receive(b, "a change is published", arrived)
			took = append(took, time.Since(began))
		}
		kit.Within(b, time.Minute, "all nodes are loaded", func() bool { return h.stream.countEnded() == takeoverNodes })
		all = append(all, time.Since(began))
	}
	slices.Sort(took)
	slices.Sort(all)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "change-p50-ms")
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "change-max-ms")
	b.ReportMetric(float64(all[len(all)/2].Milliseconds()), "all-loaded-p50-ms")
	b.ReportMetric(0, "ns/op")
}

// awaitSnapshots waits until everything is published for all nodes.
func (h *heir) awaitSnapshots() {
	h.Helper()
	kit.Within(h, 2*time.Minute, "all nodes have everything", func() bool {
		h.stream.mu.Lock()
		defer h.stream.mu.Unlock()
		for _, node := range h.nodes {
			held := h.stream.held[node]
			if held[wire.SnapshotMarker()].Sequence == 0 || len(held) < takeoverPods+2 {
				return false
			}
		}
		return true
	})
}

// loseAll gives all nodes to another replica.
func (h *heir) loseAll() {
	h.Helper()
	h.owner.changeAndNotify(func() {
		h.owner.notOwned = map[string]bool{}
		for _, node := range h.nodes {
			h.owner.notOwned[node] = true
		}
	})
	kit.Eventually(h, "nothing is loaded", func() bool {
		behind := func(node string) bool { _, _, known := h.engine.Progress(node, 0); return known }
		return !slices.ContainsFunc(h.nodes, behind)
	})
	h.stream.mu.Lock()
	defer h.stream.mu.Unlock()
	clear(h.stream.begun)
	clear(h.stream.ended)
}
