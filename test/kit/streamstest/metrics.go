package streamstest

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// CountDeadLetters returns the number of dead letters in the hub.
func CountDeadLetters(t *testing.T, reg *prometheus.Registry, plane string) float64 {
	t.Helper()
	return SumCounters(t, reg, "frond_dead_letters_total", plane)
}

// SumCounters sums the counters of a name that have a label of that value, or with "" those without labels.
func SumCounters(t *testing.T, reg *prometheus.Registry, name, value string) (sum float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && value == "" && len(m.GetLabel()) == 0 {
				sum += m.GetCounter().GetValue()
			}
			for _, label := range m.GetLabel() {
				if f.GetName() == name && label.GetValue() == value {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}
