package nodecondition

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// checkInterval is the most by which a condition of a node that has just registered is late; a check reads the node's own store.
const checkInterval = 10 * time.Second

// Keep calls write at once and then each ten seconds, until ctx ends. A write that fails is tried again.
func Keep(ctx context.Context, write func(context.Context) error, log *zap.Logger) {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for {
		if err := write(ctx); err != nil {
			log.Debug("condition of the Node not written", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
