// Package streamaudit compares what the stream holds with what this replica has recorded, to detect writes by others.
package streamaudit

import (
	"context"
	"time"

	"go.uber.org/zap"
)

const (
	// auditTick is the granularity with which the comparisons are spread over Audit.Every.
	auditTick = time.Second
	// fullAuditRounds is the number of rounds after which the whole content of the stream is read: a message that was
	// removed by another writer leaves no newer one behind.
	fullAuditRounds = 12
)

// Nodes are the nodes of which this replica has recorded what the stream holds.
type Nodes interface {
	// Loaded returns their names.
	Loaded() []string
	// LastSequence returns the highest recorded sequence of a node; known is false if it is not loaded any more.
	LastSequence(node string) (top uint64, known bool)
	// Reload reads again what the stream holds for a node.
	Reload(node string)
}

// Stream is the stream of desired state.
type Stream interface {
	// Newer reports whether the stream holds a message for the node after a sequence.
	Newer(ctx context.Context, node string, sequence uint64) (bool, error)
}

// Audit compares periodically, for each loaded node, whether the stream holds what is recorded. It costs one small request
// per node and round.
type Audit struct {
	Nodes  Nodes
	Stream Stream
	// Every is the interval between two comparisons of one node.
	Every time.Duration
	Log   *zap.Logger
}

// Run audits until ctx ends.
func (a Audit) Run(ctx context.Context) {
	tick := min(auditTick, a.Every)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var left []string
	share, round := 0, 0
	for {
		if len(left) == 0 {
			left, round = a.Nodes.Loaded(), round+1
			share = 1 + len(left)*int(tick)/int(a.Every)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		n := min(share, len(left))
		for _, node := range left[:n] {
			a.auditNode(ctx, node, round%fullAuditRounds == 0)
		}
		left = left[n:]
	}
}

func (a Audit) auditNode(ctx context.Context, node string, whole bool) {
	top, known := a.Nodes.LastSequence(node)
	if !known {
		return
	}
	if !whole {
		newer, err := a.Stream.Newer(ctx, node, top)
		if err != nil {
			a.Log.Debug("not compared with the stream", zap.String("node", node), zap.Error(err))
			return
		}
		if now, _ := a.Nodes.LastSequence(node); !newer || now != top {
			return // as recorded, or one of our own messages was in flight
		}
	}
	a.Nodes.Reload(node)
}
