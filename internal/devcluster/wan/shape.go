package wan

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"time"
)

// Shape is how bad a link is while it is up. The zero Shape is the host's own loopback.
type Shape struct {
	// Delay is how long bytes travel, one way.
	Delay time.Duration `json:"delay,omitempty"`
	// Rate is what passes in bytes per second, each way; 0 is no limit.
	Rate int `json:"rate,omitempty"`
	// Loss is the share of packets that are lost, in percent. To TCP, and so here, a loss is a stall: bytes come late, by a
	// retransmission time-out that doubles with each loss of the same packet.
	Loss int `json:"loss,omitempty"`
}

// query is the shape as the forwarder's orders carry it.
func (s Shape) query() string {
	return url.Values{
		"delay": {s.Delay.String()}, "rate": {strconv.Itoa(s.Rate)}, "loss": {strconv.Itoa(s.Loss)},
	}.Encode()
}

func parseShape(values url.Values) (s Shape, err error) {
	if s.Delay, err = time.ParseDuration(values.Get("delay")); err != nil {
		return s, fmt.Errorf("delay: %w", err)
	}
	if s.Rate, err = strconv.Atoi(values.Get("rate")); err != nil {
		return s, fmt.Errorf("rate: %w", err)
	}
	if s.Loss, err = strconv.Atoi(values.Get("loss")); err != nil {
		return s, fmt.Errorf("loss: %w", err)
	}
	if s.Delay < 0 || s.Rate < 0 || s.Loss < 0 || s.Loss > mostLoss {
		return s, fmt.Errorf("%+v: nothing is below zero, and loss is at most %d", s, mostLoss)
	}
	return s, nil
}

const (
	// mostLoss still lets something through.
	mostLoss = 90
	// firstStall and mostStall are Linux' least retransmission time-out, and a bound that keeps tests short (Linux: 120 s).
	firstStall = 200 * time.Millisecond
	mostStall  = 3 * time.Second
	// leastRead keeps a slow link from moving byte by byte.
	leastRead = 1 << 10
)

// read is how much is taken from a socket at once: of a slow link no more than an eighth of a second, or what waits here
// would be minutes of it.
func (s Shape) read() int {
	if s.Rate == 0 {
		return chunk
	}
	return min(chunk, max(leastRead, s.Rate/8))
}

// hold waits as long as n bytes take that were due at a moment.
func (s Shape) hold(ctx context.Context, due time.Time, n int) error {
	wait := time.Until(due)
	if s.Rate > 0 {
		wait = max(wait, 0) + time.Duration(n)*time.Second/time.Duration(s.Rate)
	}
	for stall := firstStall + 2*s.Delay; rand.IntN(100) < s.Loss; stall *= 2 { //nolint:gosec // a link's luck needs no secret
		wait += min(stall, mostStall)
	}
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
