package loadtest

import (
	"math"
	"slices"
	"time"
)

// Summary is what a report says about samples of one measure.
type Summary struct {
	N   int     `json:"n"`
	Min float64 `json:"min"`
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Summarize sorts a copy of the samples. A percentile is the smallest sample that at least so many are not above, so
// every number in a report is one that was measured.
func Summarize(samples []float64) Summary {
	if len(samples) == 0 {
		return Summary{}
	}
	sorted := slices.Sorted(slices.Values(samples))
	rank := func(share float64) float64 { return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)] }
	return Summary{N: len(sorted), Min: sorted[0], P50: rank(0.50), P99: rank(0.99), Max: sorted[len(sorted)-1]}
}

// milliseconds is a duration as reports show it.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// perSecond is how many a second.
func perSecond(n int, d time.Duration) float64 { return float64(n) / d.Seconds() }
