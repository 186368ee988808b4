package loadtest

import (
	"context"
	"errors"
	"fmt"
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

// record adds samples to a measure of the present scenario. The lines of a report have the order of their first samples.
func (w *Environment) record(of measure, values ...float64) {
	for i := range w.taken {
		if w.taken[i].text == of.text {
			w.taken[i].samples = append(w.taken[i].samples, values...)
			return
		}
	}
	w.recordLine(of, values...)
}

// recordLine adds a line of its own, whatever the lines before it are called.
func (w *Environment) recordLine(of measure, values ...float64) {
	w.taken = append(w.taken, measurement{of, values})
}

// recordTime adds a duration to a measure of the present scenario.
func (w *Environment) recordTime(of measure, took time.Duration) {
	of.unit = unitTime
	w.record(of, milliseconds(took))
}

// reportLines summarizes the samples of the present scenario. A group of processes that took no CPU time has no line.
func (w *Environment) reportLines() []ReportLine {
	var lines []ReportLine
	for _, m := range w.taken {
		if m.unit == unitCPU && !slices.ContainsFunc(m.samples, func(v float64) bool { return v != 0 }) {
			continue
		}
		lines = append(lines, ReportLine{Scenario: w.name, Measure: m.text, Unit: m.unit, Summary: Summarize(m.samples), Peer: m.peer, Aim: m.aim})
	}
	return lines
}

// atEnd runs undo after the present scenario, also when it fails.
func (w *Environment) atEnd(undo func(context.Context) error) { w.undo = append(w.undo, undo) }

// runScenario runs one scenario. It returns the completed measurements also with an error.
func (w *Environment) runScenario(ctx context.Context, s scenario) (lines []ReportLine, err error) {
	w.name, w.taken, w.undo = s.name, nil, nil
	err = s.run(ctx, w)
	// Leftovers would disturb the next scenario, so they are removed also when this one was interrupted.
	last := context.WithoutCancel(ctx)
	for _, undo := range slices.Backward(w.undo) {
		err = errors.Join(err, undo(last))
	}
	if err = errors.Join(err, w.deletePods(last), w.deleteConfigMaps(last), w.awaitReleasedObjects(last)); err != nil {
		err = fmt.Errorf("%s: %w", s.name, err)
	}
	return w.reportLines(), err
}
