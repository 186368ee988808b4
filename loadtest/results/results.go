// Package results summarizes the samples of a load test and prints them as a table and as JSON, with the setup that they were measured on.
package results

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"text/tabwriter"
	"time"
)

// The units. More of a rate is better, of all others less.
const (
	Time   = "ms"
	Rate   = "1/s"
	Memory = "MB"
	CPU    = "µs"
	// Traffic counts bytes of TCP payload, TLS included.
	Traffic     = "MB/h"
	SmallMemory = "KB"
	LargeMemory = "GB"
)

// Milliseconds converts a duration to the unit Time.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// PerSecond converts a number and a duration to the unit Rate.
func PerSecond(n int, d time.Duration) float64 { return float64(n) / d.Seconds() }

// Measure is what a line says besides its samples.
type Measure struct {
	Text string `json:"measure"`
	Unit string `json:"unit"`
	// Peer is KubeEdge's value of the same measurement, "" where there is none.
	Peer string `json:"peer,omitempty"`
	// Aim is the target of the median: an upper bound for times, a lower bound for rates; 0 is no target.
	Aim float64 `json:"aim,omitempty"`
}

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

// Line is one measurement of a report.
type Line struct {
	Scenario string `json:"scenario"`
	Measure
	Summary
}

// Verdict reports whether the target is met; "" without a target.
func (l Line) Verdict() string {
	switch {
	case l.Aim == 0 || l.N == 0:
		return ""
	case l.Unit == Rate && l.P50 >= l.Aim, l.Unit != Rate && l.P50 <= l.Aim:
		return "met"
	default:
		return "missed"
	}
}

func (l Line) aimText() string {
	switch {
	case l.Aim == 0:
		return ""
	case l.Unit == Rate:
		return "≥ " + formatNumber(l.Aim)
	default:
		return "≤ " + formatNumber(l.Aim)
	}
}

// Recorder collects the samples of one scenario.
type Recorder struct {
	// Scenario is its name.
	Scenario string
	measures []Measure
	samples  [][]float64
}

// Record adds samples to the line of this text. The lines of a report have the order of their first samples.
func (r *Recorder) Record(of Measure, values ...float64) {
	i := slices.IndexFunc(r.measures, func(m Measure) bool { return m.Text == of.Text })
	if i < 0 {
		r.RecordLine(of, values...)
		return
	}
	r.samples[i] = append(r.samples[i], values...)
}

// RecordLine adds a line of its own, whatever the lines before it are called.
func (r *Recorder) RecordLine(of Measure, values ...float64) {
	r.measures, r.samples = append(r.measures, of), append(r.samples, values)
}

// Lines summarizes the samples. A group of processes that took no CPU time has no line.
func (r *Recorder) Lines() (lines []Line) {
	for i, m := range r.measures {
		if m.Unit != CPU || slices.ContainsFunc(r.samples[i], func(v float64) bool { return v != 0 }) {
			lines = append(lines, Line{Scenario: r.Scenario, Measure: m, Summary: Summarize(r.samples[i])})
		}
	}
	return lines
}

// Report is the outcome of a run.
type Report struct {
	Setup Setup  `json:"setup"`
	Lines []Line `json:"lines"`
	// Loads is the machine's load average of one minute at the start of each scenario.
	Loads map[string]float64 `json:"loads"`
}

// Print writes the table.
func (r Report) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SCENARIO\tMEASURE\tUNIT\tN\tP50\tP99\tMIN\tMAX\tPEER\tAIM (P50)\t")
	for _, l := range r.Lines {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", l.Scenario, l.Text, l.Unit, l.N,
			formatNumber(l.P50), formatNumber(l.P99), formatNumber(l.Min), formatNumber(l.Max), l.Peer, l.aimText(), l.Verdict())
	}
	fmt.Fprintln(t)
	for _, name := range slices.Sorted(maps.Keys(r.Loads)) {
		fmt.Fprintf(t, "load at the start of %s\t%.2f\n", name, r.Loads[name])
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// JSON writes the whole report on one line.
func (r Report) JSON(w io.Writer) error {
	if err := json.NewEncoder(w).Encode(r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// formatNumber shows three digits or the whole part, more than the precision of the measurement.
func formatNumber(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}
