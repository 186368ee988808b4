package rulefeed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ackProgress is JetStream's ack that begins the ack wait anew.
const ackProgress = "+WPI"

// errNotConfirmed says that the hub may soon give the message to another cloudcore, or has done so.
var errNotConfirmed = errors.New("the hub has not confirmed that this cloudcore still has the message")

// holdTimes say how a message is kept from other cloudcores while it is handled.
type holdTimes struct {
	// period is the time between a confirmation and the next request for one, retry that after a failed request, and the longest that one may take.
	period, retry time.Duration
	// limit is how long after its last confirmation a message is handled; clearly less than ackWait.
	limit time.Duration
}

func defaultHoldTimes() holdTimes {
	return holdTimes{period: ackWait / 3, retry: 3 * time.Second, limit: ackWait * 2 / 3}
}

// handle calls handle, and confirm now and then. When the hub has confirmed nothing for the limit, it ends the ctx of handle; an error of handle then wraps
// errNotConfirmed.
func (h holdTimes) handle(ctx context.Context, confirm func(ctx context.Context) error, m Message, handle Handle) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var keeping sync.WaitGroup
	keeping.Go(func() { h.keepConfirmed(ctx, confirm, cancel) })
	err := handle(ctx, m)
	if err != nil && errors.Is(context.Cause(ctx), errNotConfirmed) {
		err = fmt.Errorf("%w: %w", errNotConfirmed, err)
	}
	cancel(nil)
	keeping.Wait()
	return err
}

// keepConfirmed has a message confirmed until ctx ends or, with errNotConfirmed as its cause, ends it.
func (h holdTimes) keepConfirmed(ctx context.Context, confirm func(ctx context.Context) error, end context.CancelCauseFunc) {
	timer := time.NewTimer(h.period)
	defer timer.Stop()
	for confirmed := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		asked := time.Now()
		request, cancel := context.WithDeadline(ctx, earlier(confirmed.Add(h.limit), asked.Add(h.retry)))
		err := confirm(request)
		cancel()
		next := asked.Add(h.retry)
		if err == nil {
			confirmed, next = asked, asked.Add(h.period)
		}
		left := time.Until(confirmed.Add(h.limit))
		if left <= 0 {
			end(errNotConfirmed)
			return
		}
		timer.Reset(min(left, time.Until(next)))
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
