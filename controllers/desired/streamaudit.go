package desired

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"
)

const (
	// auditTick is the granularity with which the comparisons are spread over Config.CompareEvery.
	auditTick = time.Second
	// fullAuditRounds is the number of rounds after which the whole content of the stream is read: a message that was
	// removed by another writer leaves no newer one behind.
	fullAuditRounds = 12
)

// runAudit compares periodically, for each owned node, whether the stream holds what this replica has recorded. It
// costs one small request per node and round, and detects writes by others.
func (e *Engine) runAudit(ctx context.Context) {
	tick := min(auditTick, e.cfg.CompareEvery)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var left []string
	share, round := 0, 0
	for {
		if len(left) == 0 {
			left, round = e.loadedNodes(), round+1
			share = 1 + len(left)*int(tick)/int(e.cfg.CompareEvery)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		n := min(share, len(left))
		for _, node := range left[:n] {
			e.auditNode(ctx, node, round%fullAuditRounds == 0)
		}
		left = left[n:]
	}
}

// loadedNodes returns the nodes whose stream content this replica has loaded.
func (e *Engine) loadedNodes() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var names []string
	for name, s := range e.nodes {
		if s.loaded() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (e *Engine) auditNode(ctx context.Context, node string, whole bool) {
	e.mu.Lock()
	s := e.nodes[node]
	e.mu.Unlock()
	if s == nil {
		return
	}
	top, known := s.lastSequence()
	if !known {
		return
	}
	if !whole {
		newer, err := e.publisher.Newer(ctx, node, top)
		if err != nil {
			e.log.Debug("not compared with the stream", zap.String("node", node), zap.Error(err))
			return
		}
		if now, _ := s.lastSequence(); !newer || now != top {
			return // as recorded, or one of our own messages was in flight
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.addItem(workItem{node: node})
}
