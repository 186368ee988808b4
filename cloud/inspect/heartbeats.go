package inspect

import (
	"sync"
	"time"

	"github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/api/wire"
)

// maxSteps is how many moves of a node's cursor are remembered, some 1.5 KB a node: enough for the acks of the last
// changes. Older ones are reported as on disk without a time.
const maxSteps = 32

// cursorStep is a cursor that a heartbeat reported, and when.
type cursorStep struct {
	sequence uint64
	at       time.Time
}

// nodeHeartbeat is the last heartbeat of one node.
type nodeHeartbeat struct {
	beat  wire.Heartbeat
	at    time.Time
	steps []cursorStep
}

// heartbeatLog holds the last heartbeat of each node.
type heartbeatLog struct {
	mu    sync.Mutex
	nodes map[string]*nodeHeartbeat // guarded by mu
}

// recordHeartbeat records a heartbeat. A cursor of another incarnation of the store or stream starts the steps anew.
func (b *heartbeatLog) recordHeartbeat(node string, beat wire.Heartbeat, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.nodes[node]
	if h == nil || h.beat.StoreEpoch != beat.StoreEpoch || h.beat.StreamEpoch != beat.StreamEpoch || beat.Sequence < h.beat.Sequence {
		h = &nodeHeartbeat{}
		b.nodes[node] = h
	}
	if len(h.steps) == 0 || beat.Sequence > h.beat.Sequence {
		if len(h.steps) == maxSteps {
			h.steps = append(h.steps[:0], h.steps[1:]...)
		}
		h.steps = append(h.steps, cursorStep{beat.Sequence, now})
	}
	h.beat, h.at = beat, now
}

// lastHeartbeat returns a node's last heartbeat, nil if there was none.
func (b *heartbeatLog) lastHeartbeat(node string) *inspect.Heartbeat {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.nodes[node]
	if h == nil {
		return nil
	}
	return &inspect.Heartbeat{At: h.at, Cursor: h.beat.Cursor, Healthy: h.beat.Healthy, Outbox: h.beat.Outbox, Version: h.beat.Version}
}

// passedAt returns when a heartbeat first reported that the node's cursor had passed a sequence. The zero time: it has
// not, or it had before the first heartbeat that is remembered.
func (b *heartbeatLog) passedAt(node string, sequence uint64) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.nodes[node]
	if h == nil {
		return time.Time{}
	}
	for i, s := range h.steps {
		if s.sequence >= sequence {
			if i == 0 {
				return time.Time{} // it may have passed it long before
			}
			return s.at
		}
	}
	return time.Time{}
}

// pruneNodes removes the nodes that no longer exist.
func (b *heartbeatLog) pruneNodes(exists func(node string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for node := range b.nodes {
		if !exists(node) {
			delete(b.nodes, node)
		}
	}
}
