package streams

import (
	"maps"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/wire"
)

// mark is a message that the node knows of and whose payload is still to be fetched. have grows in the hands of one
// goroutine only, the one that fetches.
type mark struct {
	epoch, subject string
	key            wire.Key
	sequence       uint64
	header         nats.Header
	size           int
	have           []byte
}

// backlog is how far a delivery has come in one life of the stream. It is never on disk: the store's cursor stays before
// the first mark, so what is forgotten at a restart is listed again.
type backlog struct {
	epoch string
	// reached: every message up to it is on disk, or among marks, or replaced by a newer one.
	reached uint64
	marks   map[wire.Key]*mark
}

// haul is what one commit brings into the store.
type haul struct {
	// messages, in order of sequence. One without operation says only that the stream holds something of that key.
	messages []wire.Message
	marks    []*mark
	// sequence: everything up to it is in this haul or was in those before.
	sequence uint64
}

// low is the cursor that may be told: everything up to it is on disk.
func (b backlog) low() uint64 {
	low := b.reached
	for _, m := range b.marks {
		low = min(low, m.sequence-1)
	}
	return low
}

// after is the backlog once a haul is on disk. A newer message of a key takes the place of its mark, whatever it says.
func (b backlog) after(h haul) backlog {
	next := backlog{epoch: b.epoch, reached: max(b.reached, h.sequence), marks: maps.Clone(b.marks)}
	for _, m := range h.marks {
		if next.marks == nil {
			next.marks = map[wire.Key]*mark{}
		}
		if old := next.marks[m.key]; old == nil || old.sequence < m.sequence {
			next.marks[m.key] = m
		}
	}
	for _, m := range h.messages {
		if old := next.marks[m.Key]; old != nil && old.sequence <= m.Sequence {
			delete(next.marks, m.Key)
		}
	}
	return next
}

// holds tells whether a mark still stands.
func (b backlog) holds(m *mark) bool { return b.marks[m.key] == m }

// smallest is the mark that lacks least: what is small is not kept waiting by what is large. nil for none.
func (b backlog) smallest(except map[*mark]struct{}) *mark {
	var found *mark
	for _, m := range b.marks {
		if _, no := except[m]; no {
			continue
		}
		if found == nil || m.lacks() < found.lacks() || m.lacks() == found.lacks() && m.sequence < found.sequence {
			found = m
		}
	}
	return found
}

func (m *mark) lacks() int { return m.size - len(m.have) }
