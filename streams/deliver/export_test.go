package deliver

import (
	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/wire"
)

// NoDeadServersQueued reports that no death of a server is waiting to be handled.
func (d *Delivery) NoDeadServersQueued() bool { return len(d.deadServers) == 0 }

// Pending returns the sequences of the pending objects.
func (b DeliveryProgress) Pending() map[string]uint64 {
	marks := map[string]uint64{}
	for key, m := range b.pending {
		marks[key.Name] = m.sequence
	}
	return marks
}

func (b DeliveryProgress) Reached() uint64 { return b.reached }

func (b DeliveryProgress) SafeCursor() uint64 { return b.safeCursor() }

// ApplyBatch applies messages, and pending objects (marks), of the given sequences.
func (b DeliveryProgress) ApplyBatch(messages, marks map[string]uint64, sequence uint64) DeliveryProgress {
	h := deliveryBatch{sequence: sequence}
	for name, sequence := range messages {
		h.messages = append(h.messages, wire.Message{Key: wire.Key{Name: name}, Sequence: sequence})
	}
	for name, sequence := range marks {
		h.pending = append(h.pending, &pendingObject{key: wire.Key{Name: name}, sequence: sequence})
	}
	return DeliveryProgress{b.applyBatch(h)}
}

// DeliveryProgress is a deliveryProgress whose pending objects and messages are identified by name.
type DeliveryProgress struct{ deliveryProgress }

// ParsePieceReply parses a reply as a node does that has have bytes of a payload of size, and requested take.
func ParsePieceReply(msg *nats.Msg, have, size, take int) ([]byte, error) {
	return parsePieceReply(msg, &pendingObject{size: size, received: make([]byte, have)}, take)
}
