package streams

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// hands holds items between where they come from and the workers, and gives each node its turn: a node has a limit of
// items, of their bytes, and of workers at a time, so that one whose items are many, large, or take long leaves the others
// free.
type hands[T comparable] struct {
	most, perNode, workers int // of items, of one node's items, of workers of one node at a time

	mu    sync.Mutex
	work  *sync.Cond               // of mu; told when an item may be worked on
	room  *sync.Cond               // of mu; told when there is room for another
	ended bool                     // guarded by mu
	all   map[T]place              // guarded by mu
	nodes map[string]*nodeHands[T] // guarded by mu
	ring  []string                 // guarded by mu; whose turn it is next
}

// bytesPerNode bounds the bytes of one node's items, which may have 4 MiB each, so that cloudcore's memory holds those of some
// stolen nodes. A single item is always taken.
const bytesPerNode = 16 * mib

// place says whose an item is, and which object's; items of one object are worked on one after the other. "": of none.
type place struct {
	node, object string
	size         int // bytes of memory
}

// sizeOf is what a message takes in memory. A header of a few bytes takes far more than they are.
func sizeOf(header nats.Header, data []byte) int {
	const entry = 128 // of a map with slices, by reading
	size := len(data)
	for key, values := range header {
		size += entry + len(key)
		for _, value := range values {
			size += entry/4 + len(value)
		}
	}
	return size
}

// nodeHands is what one node has in hand; guarded by hands.mu.
type nodeHands[T comparable] struct {
	waiting []T
	running int
	bytes   int
	busy    map[string]struct{} // objects
}

func newHands[T comparable](most, perNode, workers int) *hands[T] {
	h := &hands[T]{most: most, perNode: perNode, workers: workers, all: map[T]place{}, nodes: map[string]*nodeHands[T]{}}
	h.work, h.room = sync.NewCond(&h.mu), sync.NewCond(&h.mu)
	return h
}

// token returns one token of a subject, the first is 0.
func token(subject string, number int) string {
	for range number {
		_, subject, _ = strings.Cut(subject, ".")
	}
	subject, _, _ = strings.Cut(subject, ".")
	return subject
}

// end lets all that wait in put and next return.
func (h *hands[T]) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	h.work.Broadcast()
	h.room.Broadcast()
}

// put takes an item in hand, or returns false if its node has enough there. It waits while the hands are full.
func (h *hands[T]) put(at place, item T) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.all) >= h.most && !h.ended {
		h.room.Wait()
	}
	n := h.nodes[at.node]
	if n == nil {
		n = &nodeHands[T]{busy: map[string]struct{}{}}
		h.nodes[at.node] = n
		h.ring = append(h.ring, at.node)
	}
	if number := len(n.waiting) + n.running; number >= h.perNode || number > 0 && n.bytes+at.size > bytesPerNode {
		return false
	}
	n.bytes += at.size
	n.waiting = append(n.waiting, item)
	h.all[item] = at
	h.work.Signal()
	return true
}

// next waits for an item to work on: never two of one object at a time. done must be called with it. false: it is over.
func (h *hands[T]) next() (item T, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for !h.ended {
		for i, node := range h.ring {
			if item, ok := h.pick(h.nodes[node]); ok {
				h.ring = append(slices.Delete(h.ring, i, i+1), node)
				return item, true
			}
		}
		h.work.Wait()
	}
	return item, false
}

// pick takes the oldest item of a node whose object nobody works on. The caller holds mu.
func (h *hands[T]) pick(n *nodeHands[T]) (item T, ok bool) {
	if n.running >= h.workers {
		return item, false
	}
	for i, item := range n.waiting {
		object := h.all[item].object
		if _, busy := n.busy[object]; busy {
			continue
		}
		if object != "" {
			n.busy[object] = struct{}{}
		}
		n.waiting = slices.Delete(n.waiting, i, i+1)
		n.running++
		return item, true
	}
	return item, false
}

// done forgets an item that next gave.
func (h *hands[T]) done(item T) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.all[item]
	delete(h.all, item)
	n := h.nodes[at.node]
	delete(n.busy, at.object)
	n.running--
	n.bytes -= at.size
	if n.running == 0 && len(n.waiting) == 0 {
		delete(h.nodes, at.node)
		h.ring = slices.DeleteFunc(h.ring, func(other string) bool { return other == at.node })
	}
	h.work.Signal()
	h.room.Signal()
}

// rest returns what is still in hand.
func (h *hands[T]) rest() []T {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.all))
}
