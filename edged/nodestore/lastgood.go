package nodestore

import (
	"context"
	"time"

	"go.uber.org/zap"
)

const (
	// lastGoodDelay is when a started node first copies its store: after the boot's own writes.
	lastGoodDelay = time.Minute
	// lastGoodInterval limits the age of the copy while the store changes, and its wear: leaf/DESIGN.md has the bytes.
	lastGoodInterval = 10 * time.Minute
	// lastGoodStopTimeout limits the copy at an orderly stop.
	lastGoodStopTimeout = 5 * time.Second
)

// LastGoodSaver saves the last-good copy of the store.
type LastGoodSaver struct {
	save func(context.Context) error
	log  *zap.Logger
}

// NewLastGoodSaver returns a saver that calls save, such as store.Store's SaveLastGood.
func NewLastGoodSaver(save func(context.Context) error, log *zap.Logger) *LastGoodSaver {
	return &LastGoodSaver{save: save, log: log}
}

// Start saves periodically and once more when ctx ends, so that an orderly restart finds a copy of everything.
func (c *LastGoodSaver) Start(ctx context.Context) error {
	timer := time.NewTimer(lastGoodDelay)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastGoodStopTimeout)
			defer cancel()
			c.trySave(last)
			return nil
		case <-timer.C:
			c.trySave(ctx)
			timer.Reset(lastGoodInterval)
		}
	}
}

// trySave leaves a failed copy to the next time: the store itself is not affected.
func (c *LastGoodSaver) trySave(ctx context.Context) {
	if err := c.save(ctx); err != nil {
		c.log.Warn("last-good copy of the store not saved", zap.Error(err))
	}
}
