package deliver

import (
	"maps"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/wire"
)

// pendingObject is a message that the node knows and whose payload is still to be fetched. received grows in one goroutine only, the one
// that fetches.
type pendingObject struct {
	epoch, subject string
	key            wire.Key
	sequence       uint64
	header         nats.Header
	size           int
	received       []byte
}

// deliveryProgress is the progress of a delivery in one life of the stream. It is never on disk: the store's cursor stays before the first
// pending object, so a restart lists the lost ones again.
type deliveryProgress struct {
	epoch string
	// reached: every message up to it is on disk, or pending, or replaced by a newer one.
	reached uint64
	pending map[wire.Key]*pendingObject
}

// deliveryBatch is the content of one commit to the store.
type deliveryBatch struct {
	// messages, in order of sequence. One without an operation says only that the stream holds something of that key.
	messages []wire.Message
	pending  []*pendingObject
	// sequence: everything up to it is in this batch or was in earlier ones.
	sequence uint64
}

// safeCursor is the cursor that may be saved: everything up to it is on disk.
func (b deliveryProgress) safeCursor() uint64 {
	low := b.reached
	for _, m := range b.pending {
		low = min(low, m.sequence-1)
	}
	return low
}

// applyBatch returns the progress after a batch is on disk. A newer message of a key replaces its pending object, whatever its operation.
func (b deliveryProgress) applyBatch(h deliveryBatch) deliveryProgress {
	next := deliveryProgress{epoch: b.epoch, reached: max(b.reached, h.sequence), pending: maps.Clone(b.pending)}
	for _, m := range h.pending {
		if next.pending == nil {
			next.pending = map[wire.Key]*pendingObject{}
		}
		if old := next.pending[m.key]; old == nil || old.sequence < m.sequence {
			next.pending[m.key] = m
		}
	}
	for _, m := range h.messages {
		if old := next.pending[m.Key]; old != nil && old.sequence <= m.Sequence {
			delete(next.pending, m.Key)
		}
	}
	return next
}

// isPending reports whether an object is still pending.
func (b deliveryProgress) isPending(m *pendingObject) bool { return b.pending[m.key] == m }

// smallestPending returns the pending object with the fewest missing bytes, so that a large payload does not delay a small one. nil means
// none.
func (b deliveryProgress) smallestPending(except map[*pendingObject]struct{}) *pendingObject {
	var found *pendingObject
	for _, m := range b.pending {
		if _, no := except[m]; no {
			continue
		}
		if found == nil || m.missingBytes() < found.missingBytes() || m.missingBytes() == found.missingBytes() && m.sequence < found.sequence {
			found = m
		}
	}
	return found
}

func (m *pendingObject) missingBytes() int { return m.size - len(m.received) }
