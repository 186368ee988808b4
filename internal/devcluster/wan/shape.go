package wan

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"time"
)

// Shape is the quality of a link while it is up. The zero Shape is the host's own loopback.
type Shape struct {
	// Delay is the one-way latency.
	Delay time.Duration `json:"delay,omitempty"`
	// Rate limits the bytes per second, each way; 0 means no limit.
	Rate int `json:"rate,omitempty"`
	// Loss is the percentage of lost packets. For TCP, and so here, a loss is a stall: bytes arrive late, by a
	// retransmission time-out that doubles with each loss of the same packet.
	Loss int `json:"loss,omitempty"`
}

// encodeQuery encodes the shape for a command of the control socket.
func (s Shape) encodeQuery() string {
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
	if s.Delay < 0 || s.Rate < 0 || s.Loss < 0 || s.Loss > maxLoss {
		return s, fmt.Errorf("%+v: nothing is below zero, and loss is at most %d", s, maxLoss)
	}
	return s, nil
}

const (
	// maxLoss still lets some packets through.
	maxLoss = 90
	// firstStall is Linux' minimum retransmission time-out. maxStall bounds it so that tests stay short (Linux: 120 s).
	firstStall = 200 * time.Millisecond
	maxStall   = 3 * time.Second
	// minRead keeps a slow link from moving byte by byte.
	minRead = 1 << 10
)

// readSize is the size of one read from a socket: on a slow link at most an eighth of a second's worth, or the bytes buffered here
// would be minutes of traffic.
func (s Shape) readSize() int {
	if s.Rate == 0 {
		return chunkSize
	}
	return min(chunkSize, max(minRead, s.Rate/8))
}

// waitTransfer waits until n bytes that were due at a moment have been transferred.
func (s Shape) waitTransfer(ctx context.Context, due time.Time, n int) error {
	wait := time.Until(due)
	if s.Rate > 0 {
		wait = max(wait, 0) + time.Duration(n)*time.Second/time.Duration(s.Rate)
	}
	for stall := firstStall + 2*s.Delay; rand.IntN(100) < s.Loss; stall *= 2 { //nolint:gosec // a link's luck needs no secret
		wait += min(stall, maxStall)
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
