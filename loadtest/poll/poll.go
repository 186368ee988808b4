// Package poll waits in a load test for conditions without an event. No measured time depends on its interval.
package poll

import (
	"context"
	"fmt"
	"time"
)

const (
	// Timeout bounds a step that takes seconds: the machine may be busy.
	Timeout = 3 * time.Minute
	// interval is the polling interval.
	interval = 100 * time.Millisecond
)

// Until polls for a condition without an event.
func Until(ctx context.Context, what string, holds func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, Timeout, fmt.Errorf("not within %s", Timeout))
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		done, err := holds(ctx)
		if err != nil {
			return fmt.Errorf("wait until %s: %w", what, err)
		}
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// Sleep waits until earlier activity has settled.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
