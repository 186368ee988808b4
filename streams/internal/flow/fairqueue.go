// Package flow limits and distributes work: a queue that is fair to nodes, rate limits, retry budgets, and estimates of a link's
// bandwidth. It knows no messages.
package flow

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// FairQueue is a bounded queue that serves nodes round robin. Each node has a limit of items, of their bytes, and of workers at a time, so
// that a node with many, large or slow items leaves room for the others.
type FairQueue[T comparable] struct {
	capacity, maxPerNode, maxWorkersPerNode int // total items, items per node, workers per node at a time

	mu        sync.Mutex
	itemReady *sync.Cond               // on mu; signalled when an item may be worked on
	spaceFree *sync.Cond               // on mu; signalled when there is room for another item
	closed    bool                     // guarded by mu
	items     map[T]ItemOrigin         // guarded by mu
	nodes     map[string]*nodeQueue[T] // guarded by mu
	turnOrder []string                 // guarded by mu; the next node is first
}

// maxBytesPerNode bounds the bytes of one node's items, of up to 4 MiB each, so that cloudcore's memory holds the items of several stolen
// nodes. A single item is always accepted.
const maxBytesPerNode = 16 << 20

// ItemOrigin is the node and the object that an item belongs to; items of one object are processed one after the other. An empty object
// means that the item belongs to none.
type ItemOrigin struct {
	Node   string
	Object string
	Size   int // bytes of memory
}

// MemorySize estimates the memory of a message. A header of a few bytes takes far more memory than its length.
func MemorySize(header nats.Header, data []byte) int {
	const entry = 128 // a map entry with slices, determined by reading the code
	size := len(data)
	for key, values := range header {
		size += entry + len(key)
		for _, value := range values {
			size += entry/4 + len(value)
		}
	}
	return size
}

// nodeQueue holds the items of one node; guarded by fairQueue.mu.
type nodeQueue[T comparable] struct {
	waiting     []T
	running     int
	bytes       int
	busyObjects map[string]struct{} // objects
}

// NewFairQueue returns a queue of at most so many items, for one node and in all, which hands at most so many of one node to workers
// at a time.
func NewFairQueue[T comparable](most, perNode, workers int) *FairQueue[T] {
	h := &FairQueue[T]{capacity: most, maxPerNode: perNode, maxWorkersPerNode: workers, items: map[T]ItemOrigin{}, nodes: map[string]*nodeQueue[T]{}}
	h.itemReady, h.spaceFree = sync.NewCond(&h.mu), sync.NewCond(&h.mu)
	return h
}

// SubjectToken returns one token of a subject; the first is number 0.
func SubjectToken(subject string, number int) string {
	for range number {
		_, subject, _ = strings.Cut(subject, ".")
	}
	subject, _, _ = strings.Cut(subject, ".")
	return subject
}

// Close makes all calls waiting in push and pop return.
func (h *FairQueue[T]) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.itemReady.Broadcast()
	h.spaceFree.Broadcast()
}

// Push adds an item, or returns false if its node has reached its limit. It waits while the queue is full.
func (h *FairQueue[T]) Push(at ItemOrigin, item T) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.items) >= h.capacity && !h.closed {
		h.spaceFree.Wait()
	}
	n := h.nodes[at.Node]
	if n == nil {
		n = &nodeQueue[T]{busyObjects: map[string]struct{}{}}
		h.nodes[at.Node] = n
		h.turnOrder = append(h.turnOrder, at.Node)
	}
	if number := len(n.waiting) + n.running; number >= h.maxPerNode || number > 0 && n.bytes+at.Size > maxBytesPerNode {
		return false
	}
	n.bytes += at.Size
	n.waiting = append(n.waiting, item)
	h.items[item] = at
	h.itemReady.Signal()
	return true
}

// Pop waits for an item to process, never two of one object at a time. The caller must call done with it. false means closed.
func (h *FairQueue[T]) Pop() (item T, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for !h.closed {
		for i, node := range h.turnOrder {
			if item, ok := h.popFrom(h.nodes[node]); ok {
				h.turnOrder = append(slices.Delete(h.turnOrder, i, i+1), node)
				return item, true
			}
		}
		h.itemReady.Wait()
	}
	return item, false
}

// popFrom takes the oldest item of a node whose object is not being processed. The caller holds mu.
func (h *FairQueue[T]) popFrom(n *nodeQueue[T]) (item T, ok bool) {
	if n.running >= h.maxWorkersPerNode {
		return item, false
	}
	for i, item := range n.waiting {
		object := h.items[item].Object
		if _, busy := n.busyObjects[object]; busy {
			continue
		}
		if object != "" {
			n.busyObjects[object] = struct{}{}
		}
		n.waiting = slices.Delete(n.waiting, i, i+1)
		n.running++
		return item, true
	}
	return item, false
}

// Done removes an item that pop returned.
func (h *FairQueue[T]) Done(item T) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.items[item]
	delete(h.items, item)
	n := h.nodes[at.Node]
	delete(n.busyObjects, at.Object)
	n.running--
	n.bytes -= at.Size
	if n.running == 0 && len(n.waiting) == 0 {
		delete(h.nodes, at.Node)
		h.turnOrder = slices.DeleteFunc(h.turnOrder, func(other string) bool { return other == at.Node })
	}
	h.itemReady.Signal()
	h.spaceFree.Signal()
}

// HeldItems returns the items that are still in the queue or being processed.
func (h *FairQueue[T]) HeldItems() []T {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.items))
}
