package loadtest

import (
	"context"
	"errors"
	"fmt"
)

// Scenario measures one thing. The runner calls Prepare, then Once for each round, then Close, also after an error.
type Scenario interface {
	// Name is short and the same in every report.
	Name() string
	// Prepare makes what the rounds need and waits until it has settled.
	Prepare(ctx context.Context, w *Environment) error
	// Once measures one round. It leaves the world as it found it.
	Once(ctx context.Context, w *Environment) error
	// Lines summarizes all rounds so far.
	Lines() []ReportLine
	// Close removes what Prepare made.
	Close(ctx context.Context, w *Environment) error
}

// RunScenario runs one scenario.
func RunScenario(ctx context.Context, w *Environment, s Scenario, rounds int) (lines []ReportLine, err error) {
	// What is left over would disturb the next scenario, so it goes also when this one was interrupted.
	defer func() { err = errors.Join(err, s.Close(context.WithoutCancel(ctx), w)) }()
	if err := s.Prepare(ctx, w); err != nil {
		return nil, fmt.Errorf("%s: prepare: %w", s.Name(), err)
	}
	for range rounds {
		if err := s.Once(ctx, w); err != nil {
			return s.Lines(), fmt.Errorf("%s: %w", s.Name(), err)
		}
	}
	return s.Lines(), nil
}
