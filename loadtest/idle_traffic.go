package loadtest

import (
	"context"
	"fmt"
	"time"
)

// IdleTraffic counts the bytes of idle links: heartbeats, pings, open pulls, lease renewals and statuses.
type IdleTraffic struct {
	// Window is the length of the measurement.
	Window time.Duration

	down, up []float64
}

// Name returns the name of the scenario.
func (*IdleTraffic) Name() string { return "idle" }

// Prepare does nothing: the start of the cluster has settled.
func (*IdleTraffic) Prepare(context.Context, *Environment) error { return nil }

// Once counts for one window; each gateway is a sample.
func (s *IdleTraffic) Once(ctx context.Context, w *Environment) error {
	edges := w.edgeNames()
	began := time.Now()
	before := w.cluster.Status(ctx).Edges
	if err := sleepFor(ctx, s.Window); err != nil {
		return err
	}
	after := w.cluster.Status(ctx).Edges
	if len(before) != len(edges) || len(after) != len(edges) {
		return fmt.Errorf("%d and %d gateways tell of their links, want %d", len(before), len(after), len(edges))
	}
	const mb = 1e6
	hours := time.Since(began).Hours()
	for i := range after {
		s.down = append(s.down, float64(after[i].DownBytes-before[i].DownBytes)/mb/hours)
		s.up = append(s.up, float64(after[i].UpBytes-before[i].UpBytes)/mb/hours)
	}
	return nil
}

// Lines returns the lines of the report.
func (s *IdleTraffic) Lines() []ReportLine {
	return []ReportLine{
		{Scenario: s.Name(), Measure: fmt.Sprintf("over the link in an hour, from %s: down", s.Window), Unit: unitTraffic, Summary: Summarize(s.down)},
		{Scenario: s.Name(), Measure: "  up", Unit: unitTraffic, Summary: Summarize(s.up)},
	}
}

// Close does nothing.
func (*IdleTraffic) Close(context.Context, *Environment) error { return nil }
