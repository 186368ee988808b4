// Package kit waits in tests for a condition, such as a state of a cluster.
package kit

import (
	"context"
	"errors"
	"testing"
	"time"
)

// attemptTimeout bounds one attempt, so that a hanging call does not use up the whole limit.
const attemptTimeout = 20 * time.Second

// Until calls missing once every tick until it returns nil. It fails the test after limit with the error of the last complete
// attempt, or at once with an error of Permanent. The context of an attempt ends after 20 s, or with the limit.
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
		if ctx.Err() == nil || last == nil { // an attempt that the limit cut short says nothing
			last = now
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %v", what, limit, last)
		case <-ticker.C:
		}
	}
}

// FromText adapts a check that describes what is missing as text, "" for nothing.
func FromText(missing func(ctx context.Context) string) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		if now := missing(ctx); now != "" {
			return errors.New(now)
		}
		return nil
	}
}

// Permanent marks an error after which waiting is pointless.
func Permanent(because error) error { return &permanentError{because} }

type permanentError struct{ error }

func (e *permanentError) Unwrap() error { return e.error }
