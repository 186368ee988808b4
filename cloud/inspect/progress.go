package inspect

import (
	"time"

	"github.com/frond-edge/frond/api/inspect"
)

// progressReading contains the data read about one node, and what is computed from it.
type progressReading struct {
	heartbeat *inspect.Heartbeat
	consumer  *inspect.Consumer
	// epoch identifies the present incarnation of the stream.
	epoch string
	// marker is the sequence of the snapshot marker, 0 if there is none. It counts as a message but is no object.
	marker uint64
	// sequence and source are the results of appliedCursor.
	sequence uint64
	source   string
	// total is the number of messages in the stream, missing the number of those after sequence, oldest the time of the
	// first of these.
	total, missing int
	oldest         time.Time
}

// appliedCursor returns the stream sequence up to which everything is on the node's disk, and the source of that
// knowledge; "" if there is none. The heartbeat decides: a cursor of another incarnation of the stream proves nothing
// about this one. Acks may be newer than it. Before the first ack, however, the floor of a consumer is only its
// configured start, maybe before the node had saved the rest.
func (t progressReading) appliedCursor() (sequence uint64, by string) {
	acked := uint64(0)
	if t.consumer != nil && t.consumer.Acked {
		acked = t.consumer.AckFloor
	}
	switch {
	case t.heartbeat != nil && t.heartbeat.Cursor.StreamEpoch != t.epoch:
		return 0, inspect.AppliedByHeartbeat
	case t.heartbeat != nil:
		return max(t.heartbeat.Cursor.Sequence, acked), inspect.AppliedByHeartbeat
	case acked != 0:
		return acked, inspect.AppliedByConsumer
	}
	return 0, ""
}

// computeProgress counts objects. The data was read one after the other, so a difference may be off by the changes in between.
func (t progressReading) computeProgress() inspect.Progress {
	without := func(n int, after uint64) int {
		if t.marker > after {
			n--
		}
		return max(n, 0)
	}
	p := inspect.Progress{
		Desired: without(t.total, 0), Complete: t.marker != 0, Consumer: t.consumer, Sequence: t.sequence, AppliedBy: t.source,
	}
	if t.source != "" {
		missing := min(without(t.missing, t.sequence), p.Desired)
		applied := p.Desired - missing
		p.Applied, p.Delivered = &applied, &applied
		if missing > 0 {
			p.Oldest = t.oldest
		}
	}
	if t.consumer != nil {
		unsent := min(without(int(t.consumer.Pending), t.consumer.Delivered), p.Desired)
		if delivered := p.Desired - unsent; p.Applied == nil || delivered > *p.Applied {
			p.Delivered = &delivered
		}
	}
	return p
}
