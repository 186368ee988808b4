package loadtest

import (
	"context"
	"slices"
	"time"
)

// scenario is one measurement. run creates the objects that it needs and records its measurements; the objects are removed afterwards.
type scenario struct {
	name string
	run  func(ctx context.Context, w *Environment) error
}

// measure is what a line of a report says besides its samples.
type measure struct {
	text, unit, peer string
	aim              float64
}

// measurement is a line of a report with all its samples.
type measurement struct {
	measure
	samples []float64
}

// recorder collects the measurements of the present scenario, by its name.
type recorder struct {
	name  string
	taken []measurement
}

// record adds samples to a measure of the present scenario. The lines of a report have the order of their first samples.
func (r *recorder) record(of measure, values ...float64) {
	for i := range r.taken {
		if r.taken[i].text == of.text {
			r.taken[i].samples = append(r.taken[i].samples, values...)
			return
		}
	}
	r.recordLine(of, values...)
}

// recordLine adds a line of its own, whatever the lines before it are called.
func (r *recorder) recordLine(of measure, values ...float64) {
	r.taken = append(r.taken, measurement{of, values})
}

// recordTime adds a duration to a measure of the present scenario.
func (r *recorder) recordTime(of measure, took time.Duration) {
	of.unit = unitTime
	r.record(of, milliseconds(took))
}

// reportLines summarizes the samples of the present scenario. A group of processes that took no CPU time has no line.
func (r *recorder) reportLines() []ReportLine {
	var lines []ReportLine
	for _, m := range r.taken {
		if m.unit == unitCPU && !slices.ContainsFunc(m.samples, func(v float64) bool { return v != 0 }) {
			continue
		}
		lines = append(lines, ReportLine{Scenario: r.name, Measure: m.text, Unit: m.unit, Summary: Summarize(m.samples), Peer: m.peer, Aim: m.aim})
	}
	return lines
}
