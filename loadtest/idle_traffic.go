package loadtest

import (
	"context"
	"fmt"
	"time"
)

// Idle counts what passes the links while nothing changes: heartbeats, pings, open pulls, leases' reasons and statuses.
type Idle struct {
	// Window is how long is counted.
	Window time.Duration

	down, up []float64
}

// Name of the scenario.
func (*Idle) Name() string { return "idle" }

// Prepare does nothing: what starting the cluster stirred up has settled.
func (*Idle) Prepare(context.Context, *World) error { return nil }

// Once counts for one window, each gateway is a sample.
func (s *Idle) Once(ctx context.Context, w *World) error {
	edges := w.edges()
	began := time.Now()
	before := w.cluster.Status(ctx).Edges
	if err := rest(ctx, s.Window); err != nil {
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

// Lines of the report.
func (s *Idle) Lines() []Line {
	return []Line{
		{Scenario: s.Name(), Measure: fmt.Sprintf("over the link in an hour, from %s: down", s.Window), Unit: unitTraffic, Summary: Summarize(s.down)},
		{Scenario: s.Name(), Measure: "  up", Unit: unitTraffic, Summary: Summarize(s.up)},
	}
}

// Close does nothing.
func (*Idle) Close(context.Context, *World) error { return nil }
