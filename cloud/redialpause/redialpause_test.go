package redialpause

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
)

// The pause follows the number of gateways, which is counted rarely; a count that fails tells nothing, so that gateways keep what they know.
func TestPause_FollowsFleet(t *testing.T) {
	gateways, counts, fault := 10_000, 0, error(nil)
	pause := New(250, func(context.Context) (int, error) {
		counts++
		return gateways, fault
	}, zaptest.NewLogger(t))
	now := time.Unix(1_700_000_000, 0)
	expect := func(want time.Duration, counted int) {
		t.Helper()
		if got := pause.Longest(t.Context(), now); got != want || counts != counted {
			t.Errorf("%v after %d counts, want %v after %d", got, counts, want, counted)
		}
	}
	expect(40*time.Second, 1)
	gateways = 100
	now = now.Add(countInterval - 1)
	expect(40*time.Second, 1)
	now = now.Add(1)
	expect(time.Second, 2) // a shorter pause must be told, too: one that fell silent would be kept for ever
	now, fault = now.Add(countInterval), errors.New("no cache")
	expect(0, 3)
	fault = nil
	expect(time.Second, 4)
}
