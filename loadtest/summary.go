package loadtest

import (
	"math"
	"slices"
	"time"
)

// Summary summarizes the samples of one measurement.
type Summary struct {
	N   int     `json:"n"`
	Min float64 `json:"min"`
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Summarize sorts a copy of the samples. A percentile is the smallest sample that at least this share of samples does not exceed, so
// every number in a report is a measured one.
func Summarize(samples []float64) Summary {
	if len(samples) == 0 {
		return Summary{}
	}
	sorted := slices.Sorted(slices.Values(samples))
	rank := func(share float64) float64 { return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)] }
	return Summary{N: len(sorted), Min: sorted[0], P50: rank(0.50), P99: rank(0.99), Max: sorted[len(sorted)-1]}
}

// milliseconds converts a duration for a report.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// perSecond converts a number and a duration to a rate per second.
func perSecond(n int, d time.Duration) float64 { return float64(n) / d.Seconds() }
