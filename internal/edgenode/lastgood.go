package edgenode

import (
	"context"
	"time"

	"go.uber.org/zap"
)

const (
	// copyFirst is when a node that has started first copies its store: after the boot's own writes.
	copyFirst = time.Minute
	// copyEvery bounds the age of the copy while the store changes, and its wear: leaf/DESIGN.md has the bytes.
	copyEvery = 10 * time.Minute
	// copyLast bounds the copy at an orderly end.
	copyLast = 5 * time.Second
)

// copier keeps the last-good copy of the store.
type copier struct {
	save func(context.Context) error
	log  *zap.Logger
}

// Start saves from time to time and once more when ctx ends, so that an orderly restart finds a copy of everything.
func (c *copier) Start(ctx context.Context) error {
	timer := time.NewTimer(copyFirst)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), copyLast)
			defer cancel()
			c.try(last)
			return nil
		case <-timer.C:
			c.try(ctx)
			timer.Reset(copyEvery)
		}
	}
}

// try leaves what cannot be saved to the next time: the store itself is not worse for it.
func (c *copier) try(ctx context.Context) {
	if err := c.save(ctx); err != nil {
		c.log.Warn("last-good copy of the store not saved", zap.Error(err))
	}
}
