package streams

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// fairQueue is a bounded queue that serves nodes round robin. Each node has a limit of items, of their bytes, and of workers at a time, so
// that a node with many, large or slow items leaves room for the others.
type fairQueue[T comparable] struct {
	capacity, maxPerNode, maxWorkersPerNode int // total items, items per node, workers per node at a time

	mu        sync.Mutex
	itemReady *sync.Cond               // on mu; signalled when an item may be worked on
	spaceFree *sync.Cond               // on mu; signalled when there is room for another item
	closed    bool                     // guarded by mu
	items     map[T]itemOrigin         // guarded by mu
	nodes     map[string]*nodeQueue[T] // guarded by mu
	turnOrder []string                 // guarded by mu; the next node is first
}

// maxBytesPerNode bounds the bytes of one node's items, of up to 4 MiB each, so that cloudcore's memory holds the items of several stolen
// nodes. A single item is always accepted.
const maxBytesPerNode = 16 * mib

// itemOrigin is the node and the object that an item belongs to; items of one object are processed one after the other. An empty object
// means that the item belongs to none.
type itemOrigin struct {
	node, object string
	size         int // bytes of memory
}

// memorySize estimates the memory of a message. A header of a few bytes takes far more memory than its length.
func memorySize(header nats.Header, data []byte) int {
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

func newFairQueue[T comparable](most, perNode, workers int) *fairQueue[T] {
	h := &fairQueue[T]{capacity: most, maxPerNode: perNode, maxWorkersPerNode: workers, items: map[T]itemOrigin{}, nodes: map[string]*nodeQueue[T]{}}
	h.itemReady, h.spaceFree = sync.NewCond(&h.mu), sync.NewCond(&h.mu)
	return h
}

// subjectToken returns one token of a subject; the first is number 0.
func subjectToken(subject string, number int) string {
	for range number {
		_, subject, _ = strings.Cut(subject, ".")
	}
	subject, _, _ = strings.Cut(subject, ".")
	return subject
}

// close makes all calls waiting in push and pop return.
func (h *fairQueue[T]) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.itemReady.Broadcast()
	h.spaceFree.Broadcast()
}

// push adds an item, or returns false if its node has reached its limit. It waits while the queue is full.
func (h *fairQueue[T]) push(at itemOrigin, item T) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.items) >= h.capacity && !h.closed {
		h.spaceFree.Wait()
	}
	n := h.nodes[at.node]
	if n == nil {
		n = &nodeQueue[T]{busyObjects: map[string]struct{}{}}
		h.nodes[at.node] = n
		h.turnOrder = append(h.turnOrder, at.node)
	}
	if number := len(n.waiting) + n.running; number >= h.maxPerNode || number > 0 && n.bytes+at.size > maxBytesPerNode {
		return false
	}
	n.bytes += at.size
	n.waiting = append(n.waiting, item)
	h.items[item] = at
	h.itemReady.Signal()
	return true
}

// pop waits for an item to process, never two of one object at a time. The caller must call done with it. false means closed.
func (h *fairQueue[T]) pop() (item T, ok bool) {
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
func (h *fairQueue[T]) popFrom(n *nodeQueue[T]) (item T, ok bool) {
	if n.running >= h.maxWorkersPerNode {
		return item, false
	}
	for i, item := range n.waiting {
		object := h.items[item].object
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

// done removes an item that pop returned.
func (h *fairQueue[T]) done(item T) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.items[item]
	delete(h.items, item)
	n := h.nodes[at.node]
	delete(n.busyObjects, at.object)
	n.running--
	n.bytes -= at.size
	if n.running == 0 && len(n.waiting) == 0 {
		delete(h.nodes, at.node)
		h.turnOrder = slices.DeleteFunc(h.turnOrder, func(other string) bool { return other == at.node })
	}
	h.itemReady.Signal()
	h.spaceFree.Signal()
}

// heldItems returns the items that are still in the queue or being processed.
func (h *fairQueue[T]) heldItems() []T {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.items))
}
