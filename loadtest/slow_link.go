package loadtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// SlowLink runs another scenario while the first gateway's link has a long round trip.
type SlowLink struct {
	Scenario
	RoundTrip time.Duration
	// Peer and Aim are the peer's value and the target of the first line.
	Peer string
	Aim  float64
}

const (
	slowRoundTrip = 100 * time.Millisecond
	slowPeer      = "9"
	slowAim       = 1000
)

// Name returns the name of the scenario.
func (s *SlowLink) Name() string { return s.Scenario.Name() + " over a slow link" }

// Prepare prepares the other scenario, then slows the link.
func (s *SlowLink) Prepare(ctx context.Context, w *Environment) error {
	if err := s.Scenario.Prepare(ctx, w); err != nil {
		return err
	}
	return w.cluster.Shape(ctx, w.edgeNames()[0], wan.Shape{Delay: s.RoundTrip / 2})
}

// Lines returns the other scenario's lines, without the CPU time per delivery, which does not depend on the delay.
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

// Close restores the link.
func (s *SlowLink) Close(ctx context.Context, w *Environment) error {
	return errors.Join(w.cluster.Shape(ctx, w.edgeNames()[0], wan.Shape{}), s.Scenario.Close(ctx, w))
}
