package loadtest

import (
	"context"
	"errors"
	"fmt"
)

// Scenario is one measurement. The runner calls Prepare, then Once for each round, then Close, also after an error.
type Scenario interface {
	// Name is short and the same in every report.
	Name() string
	// Prepare creates the objects that the rounds need and waits until they have settled.
	Prepare(ctx context.Context, w *Environment) error
	// Once measures one round. It leaves the cluster as it found it.
	Once(ctx context.Context, w *Environment) error
	// Lines summarizes all rounds so far.
	Lines() []ReportLine
	// Close removes the objects of Prepare.
	Close(ctx context.Context, w *Environment) error
}

// RunScenario runs one scenario.
func RunScenario(ctx context.Context, w *Environment, s Scenario, rounds int) (lines []ReportLine, err error) {
	// Leftovers would disturb the next scenario, so they are removed also when this one was interrupted.
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
