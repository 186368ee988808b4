// Package poll waits in a load test for conditions without an event. No measured time depends on its interval.
package poll

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// timeout is that long because the machine may be busy.
	timeout = 3 * time.Minute
	// interval is the polling interval.
	interval = 100 * time.Millisecond
)

// WithTimeout bounds a step that takes seconds.
func WithTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not within %s", timeout))
}

// Until polls for a condition without an event.
func Until(ctx context.Context, what string, holds func(context.Context) (bool, error)) error {
	ctx, cancel := WithTimeout(ctx)
	defer cancel()
	if err := wait.PollUntilContextCancel(ctx, interval, true, holds); err != nil {
		return fmt.Errorf("wait until %s: %w", what, errors.Join(err, context.Cause(ctx)))
	}
	return nil
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
