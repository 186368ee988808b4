package loadtest

import (
	"context"
	"fmt"
	"time"
)

// memorySamples collects the memory of processes in successive states.
type memorySamples struct {
	// settle is the pause before a state is sampled; each is the number of samples, a second apart.
	settle time.Duration
	each   int

	order     []string
	rss, anon map[string][]float64 // MB
}

// sampleSettled samples a component after the state has settled.
func (m *memorySamples) sampleSettled(ctx context.Context, w *Environment, part, state string) error {
	if err := sleepFor(ctx, m.settle); err != nil {
		return err
	}
	return m.sampleNow(ctx, w, part, state)
}

func (m *memorySamples) sampleNow(ctx context.Context, w *Environment, part, state string) error {
	if m.rss == nil {
		m.rss, m.anon = map[string][]float64{}, map[string][]float64{}
	}
	if _, known := m.rss[state]; !known {
		m.order = append(m.order, state)
	}
	for range m.each {
		now, err := readMemory(w.cluster.PID(part))
		if err != nil {
			return fmt.Errorf("memory of %s: %w", part, err)
		}
		const mb = 1e6
		m.rss[state], m.anon[state] = append(m.rss[state], float64(now.rss)/mb), append(m.anon[state], float64(now.anonymous)/mb)
		if err := sleepFor(ctx, time.Second); err != nil {
			return err
		}
	}
	return nil
}

// reportLines returns the lines of a report, in the order of the states. label names a state there, peer returns the peer's value.
func (m *memorySamples) reportLines(scenario string, label func(state string) string, peer func(state string) (rss, anon string)) (lines []ReportLine) {
	for _, state := range m.order {
		rss, anon := peer(state)
		lines = append(lines,
			ReportLine{Scenario: scenario, Measure: label(state) + ": RSS", Unit: unitMemory, Summary: Summarize(m.rss[state]), Peer: rss},
			ReportLine{Scenario: scenario, Measure: label(state) + ": RssAnon", Unit: unitMemory, Summary: Summarize(m.anon[state]), Peer: anon})
	}
	return lines
}
