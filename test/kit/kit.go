// Package kit waits in tests for a condition, such as a state of a cluster, ends a test on an error, and finds ports for servers.
//
// Each wait polls, because what it waits for has no event. A wait that fails says what it waited for and the last state.
package kit

import (
	"context"
	"errors"
	"testing"
	"time"
)

const (
	// attemptTimeout bounds one attempt, so that a hanging call does not use up the whole limit.
	attemptTimeout = 20 * time.Second
	// defaultLimit is many times what a condition takes on a busy machine.
	defaultLimit = time.Minute
	// pollInterval is short: most conditions are read from memory.
	pollInterval = 10 * time.Millisecond
)

// Must ends the test on an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Eventually waits until a condition holds, and fails the test after a minute.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	Within(t, defaultLimit, what, holds)
}

// Within is Eventually with another limit.
func Within(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	poll(t, limit, what, func() error {
		if !holds() {
			return errFalse
		}
		return nil
	})
}

// errFalse is the state of a condition that says only whether it holds.
var errFalse = errors.New("it does not hold")

// Succeeds calls check until it returns nil, and fails the test after the limit with the last error.
func Succeeds(t testing.TB, limit time.Duration, check func() error) {
	t.Helper()
	poll(t, limit, "the check", check)
}

// poll is also for cleanups, where the test's context has ended.
func poll(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		last := check()
		if last == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("%s: not within %s: %v", what, limit, last)
		case <-ticker.C:
		}
	}
}

// Receive returns the next value of a channel, or the zero value once it is closed. It fails the test after a minute.
func Receive[T any](t testing.TB, what string, from <-chan T) (value T) {
	t.Helper()
	deadline := time.NewTimer(defaultLimit)
	defer deadline.Stop()
	select {
	case value = <-from:
	case <-deadline.C:
		t.Fatalf("%s: not within %s", what, defaultLimit)
	}
	return value
}

// Until calls missing once every tick until it returns nil. It fails the test after limit with the error of the last complete
// attempt, or at once with an error of Permanent. The context of an attempt ends after 20 s, with the limit, or with the test.
func Until(t testing.TB, what string, limit, tick time.Duration, missing func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var last error
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		now := missing(attempt)
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
