package inspect

import (
	"time"

	"github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/api/wire"
)

// ComputeProgress computes the progress from a reading.
func ComputeProgress(heard *inspect.Heartbeat, consumer *inspect.Consumer, epoch string, marker uint64, all int, missing func(after uint64) int, oldest time.Time) inspect.Progress {
	t := progressReading{heartbeat: heard, consumer: consumer, epoch: epoch, marker: marker, total: all, oldest: oldest}
	if t.sequence, t.source = t.appliedCursor(); t.source != "" {
		t.missing = missing(t.sequence)
	}
	return t.computeProgress()
}

// HeartbeatLog wraps heartbeatLog for tests.
type HeartbeatLog struct{ log heartbeatLog }

func NewHeartbeatLog() *HeartbeatLog {
	return &HeartbeatLog{heartbeatLog{nodes: map[string]*nodeHeartbeat{}}}
}

func (b *HeartbeatLog) RecordHeartbeat(node string, beat wire.Heartbeat, now time.Time) {
	b.log.recordHeartbeat(node, beat, now)
}

func (b *HeartbeatLog) PassedAt(node string, sequence uint64) time.Time {
	return b.log.passedAt(node, sequence)
}

func (b *HeartbeatLog) LastHeartbeat(node string) *inspect.Heartbeat {
	return b.log.lastHeartbeat(node)
}
func (b *HeartbeatLog) PruneNodes(exists func(string) bool) { b.log.pruneNodes(exists) }
