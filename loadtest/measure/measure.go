// Package measure counts how long operations took from when they were due, not from when they were begun, so that a tool that is held up does
// not hide what its users would wait (coordinated omission). An operation that never ends is missing, and no latency.
package measure

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// maxLatency is the longest latency that is told apart, digits the decimal digits that are exact.
	maxLatency = time.Hour
	digits     = 3
	// timeline is how many seconds of a phase are kept one by one for plots; later ones count to the last.
	timeline = 3600
)

// Histogram holds the latencies of one phase.
type Histogram struct {
	began time.Time

	mu      sync.Mutex // guards all fields below
	all     *hdrhistogram.Histogram
	seconds []time.Duration // the longest latency of the operations that ended in each second
}

// NewHistogram returns an empty histogram.
func NewHistogram(began time.Time) *Histogram {
	return &Histogram{began: began, all: hdrhistogram.New(1, maxLatency.Microseconds(), digits)}
}

// Record records an operation that was due and has ended.
func (h *Histogram) Record(due, ended time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	latency := max(0, ended.Sub(due))
	_ = h.all.RecordValue(min(latency, maxLatency).Microseconds()) // within its bounds
	second := min(max(0, int(ended.Sub(h.began)/time.Second)), timeline-1)
	for len(h.seconds) <= second {
		h.seconds = append(h.seconds, 0)
	}
	h.seconds[second] = max(h.seconds[second], latency)
}

// Summary is what a report says of a histogram.
type Summary struct {
	Count int64   `json:"count"`
	P50   float64 `json:"p50Ms"`
	P90   float64 `json:"p90Ms"`
	P99   float64 `json:"p99Ms"`
	Max   float64 `json:"maxMs"`
	// Worst is the longest latency of the operations that ended in each second, in ms.
	Worst []float64 `json:"worstMsBySecond,omitempty"`
}

// Summary summarises the histogram.
func (h *Histogram) Summary() Summary {
	h.mu.Lock()
	defer h.mu.Unlock()
	const microsInMilli = 1000.0
	quantile := func(q float64) float64 { return float64(h.all.ValueAtQuantile(q)) / microsInMilli }
	s := Summary{Count: h.all.TotalCount(), P50: quantile(50), P90: quantile(90), P99: quantile(99), Max: float64(h.all.Max()) / microsInMilli}
	for _, d := range h.seconds {
		s.Worst = append(s.Worst, float64(d.Microseconds())/microsInMilli)
	}
	return s
}

// Tracker follows operations on objects from when they are due until they are seen to have ended. A state that is newer than that of an
// operation ends it, too, because intermediate states may be skipped.
type Tracker struct {
	mu          sync.Mutex // guards all fields below
	outstanding map[string][]operation
	count       int
}

type operation struct {
	sequence int64
	due      time.Time
	into     *Histogram
}

// NewTracker returns a tracker without operations.
func NewTracker() *Tracker { return &Tracker{outstanding: map[string][]operation{}} }

// Begin adds an operation on an object; those of one object have rising sequences.
func (t *Tracker) Begin(object string, sequence int64, due time.Time, into *Histogram) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.outstanding[object] = append(t.outstanding[object], operation{sequence, due, into})
	t.count++
}

// End ends the operations on an object up to a sequence.
func (t *Tracker) End(object string, sequence int64, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var rest []operation
	for _, o := range t.outstanding[object] {
		if o.sequence > sequence {
			rest = append(rest, o)
			continue
		}
		o.into.Record(o.due, at)
		t.count--
	}
	t.setOutstanding(object, rest)
}

// Drop forgets one operation, as one that was never begun.
func (t *Tracker) Drop(object string, sequence int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var rest []operation
	for _, o := range t.outstanding[object] {
		if o.sequence == sequence {
			t.count--
		} else {
			rest = append(rest, o)
		}
	}
	t.setOutstanding(object, rest)
}

// setOutstanding replaces the operations of an object; mu is held.
func (t *Tracker) setOutstanding(object string, rest []operation) {
	if len(rest) == 0 {
		delete(t.outstanding, object)
		return
	}
	t.outstanding[object] = rest
}

// Outstanding returns how many operations have not ended.
func (t *Tracker) Outstanding() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count
}

// Abandon forgets all operations, and returns how many there were.
func (t *Tracker) Abandon() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	missing := t.count
	clear(t.outstanding)
	t.count = 0
	return missing
}
