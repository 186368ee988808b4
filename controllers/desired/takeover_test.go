package desired_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/test/kit"
)

// A change is published while the loads of all other nodes stand still, whether it came before the takeover or after it, and
// nothing is decided about a node before its load.
func TestEngine_ChangeWaitsForItsOwnLoadOnly(t *testing.T) {
	const nodes, changes, maxWaiting = 2000, 100, 16
	unknown := "gw-1999"
	h := startHeir(t, nodes, func(s *memoryStream) {
		s.store(wire.Message{Node: unknown, Key: podKeyOf("deleted"), Op: wire.Apply, UID: "u", Version: "1", Digest: "d"})
	})
	pods := h.source(podOn("", ""))
	before := h.nodes[1000]
	h.stream.release(before)
	pods.Add(podOn(before, "before"))
	h.takeOver()
	kit.Eventually(t, "loads that nothing waits for have begun and stand still", func() bool { return h.stream.countBegun() >= maxWaiting })
	h.eventuallyPublished(before, "before")

	pods.Add(podOn(unknown, "added"))
	kit.Eventually(t, "the load of a node with a change has begun", func() bool { return h.stream.hasBegun(unknown) })
	for i := range changes {
		node := h.nodes[1100+i]
		h.stream.release(node)
		pods.Add(podOn(node, fmt.Sprint("pod-", i)))
	}
	for i := range changes {
		h.eventuallyPublished(h.nodes[1100+i], fmt.Sprint("pod-", i))
	}
	h.stream.mu.Lock()
	if got := len(h.stream.ended); got != changes+1 {
		t.Errorf("%d loads have ended, want the %d of the nodes with a change", got, changes+1)
	}
	if waiting := len(h.stream.begun) - len(h.stream.ended); waiting > maxWaiting+1 {
		t.Errorf("%d other loads have begun, want %d at most", waiting, maxWaiting+1)
	}
	for node, held := range h.stream.held {
		if h.stream.ended[node] == 0 && (node != unknown || len(held) != 1 || held[podKeyOf("deleted")].Op != wire.Apply) {
			t.Errorf("something was decided about %s before its load: %v", node, held)
		}
	}
	h.stream.mu.Unlock()

	h.stream.release()
	kit.Eventually(t, "all nodes are loaded", func() bool { return h.stream.countEnded() == nodes })
	h.eventuallyPublished(unknown, "added")
	kit.Eventually(t, "the deletion that the dead replica has not published is", func() bool {
		return h.stream.message(unknown, podKeyOf("deleted")).Op == wire.Delete
	})
	h.stream.mu.Lock()
	defer h.stream.mu.Unlock()
	for node, n := range h.stream.begun {
		if n != 1 {
			t.Errorf("%s was loaded %d times", node, n)
		}
	}
}

// Loads that nothing waits for are made however many changes there are.
func TestEngine_LoadsProgressBesideChanges(t *testing.T) {
	h := startHeir(t, 500, nil)
	h.stream.release()
	pods := h.source(podOn("", ""))
	pods.Add(podOn(h.nodes[0], "busy"))
	h.takeOver()
	h.eventuallyPublished(h.nodes[0], "busy")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ctx.Err() == nil; i++ {
			pod := podOn(h.nodes[0], "busy")
			pod.Labels = map[string]string{"round": fmt.Sprint(i)}
			pods.Modify(pod)
		}
	}()
	kit.Eventually(t, "all nodes are loaded", func() bool { return h.stream.countEnded() == len(h.nodes) })
	cancel()
	kit.Receive(t, "the changes end", ended)
}
