// Package await waits in tests for what becomes true by itself, such as a state of a cluster.
package await

import (
	"context"
	"errors"
	"testing"
	"time"
)

// attemptTimeout bounds one look, so that one call that hangs is not all that was tried.
const attemptTimeout = 20 * time.Second

// Until looks, once every tick, until nothing is missing, and fails the test after limit with what the last whole look said, or at
// once with what Never wraps. The context of a look ends after 20 s, or with the limit.
func Until(t testing.TB, what string, limit, tick time.Duration, missing func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var last error
	for {
		look, cancel := context.WithTimeout(ctx, attemptTimeout)
		now := missing(look)
		cancel()
		if now == nil {
			return
		}
		if never := (*permanentError)(nil); errors.As(now, &never) {
			t.Fatalf("%s: %v", what, now)
		}
		if ctx.Err() == nil || last == nil { // the last look was cut short and tells nothing
			last = now
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %v", what, limit, last)
		case <-ticker.C:
		}
	}
}

// FromText makes a look of one that says what is missing in words, "" for nothing.
func FromText(missing func(ctx context.Context) string) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		if now := missing(ctx); now != "" {
			return errors.New(now)
		}
		return nil
	}
}

// Permanent says that there is nothing to wait for any more.
func Permanent(because error) error { return &permanentError{because} }

type permanentError struct{ error }

func (e *permanentError) Unwrap() error { return e.error }
