package loadtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// SlowLink plays another scenario while the first gateway's link has a long round trip.
type SlowLink struct {
	Scenario
	RoundTrip time.Duration
	// Peer's number and the aim of the first line.
	Peer string
	Aim  float64
}

const (
	slowRoundTrip = 100 * time.Millisecond
	slowPeer      = "9"
	slowAim       = 1000
)

// Name of the scenario.
func (s *SlowLink) Name() string { return s.Scenario.Name() + " over a slow link" }

// Prepare slows the link when the other scenario is prepared.
func (s *SlowLink) Prepare(ctx context.Context, w *Environment) error {
	if err := s.Scenario.Prepare(ctx, w); err != nil {
		return err
	}
	return w.cluster.Shape(ctx, w.edgeNames()[0], wan.Shape{Delay: s.RoundTrip / 2})
}

// Lines are the other's; the CPU per delivery is the same as without delay.
func (s *SlowLink) Lines() []ReportLine {
	var lines []ReportLine
	for i, l := range s.Scenario.Lines() {
		if l.Unit == unitCPU {
			continue
		}
		if i == 0 {
			l.Measure, l.Peer, l.Aim = fmt.Sprintf("%s, round trip %s", l.Measure, s.RoundTrip), s.Peer, s.Aim
		}
		lines = append(lines, l)
	}
	return lines
}

// Close makes the link good again.
func (s *SlowLink) Close(ctx context.Context, w *Environment) error {
	return errors.Join(w.cluster.Shape(ctx, w.edgeNames()[0], wan.Shape{}), s.Scenario.Close(ctx, w))
}
