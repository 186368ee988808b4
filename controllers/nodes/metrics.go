package nodes

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// gauges collects the state of this replica's connected nodes, computed at each scrape.
type gauges struct{ *Monitor }

func gaugeDescriptions() (connected, behind, objects, oldest, period *prometheus.Desc) {
	gauge := func(name, help string) *prometheus.Desc { return prometheus.NewDesc("frond_"+name, help, nil, nil) }
	return gauge("connected_nodes", "Nodes that this replica owns and whose heartbeats arrive."),
		gauge("behind_nodes", "Of the connected nodes, those that lack a change."),
		gauge("behind_objects", "Changes that connected nodes lack."),
		gauge("behind_oldest_seconds", "Age of the oldest change that a connected node lacks."),
		gauge("lease_period_seconds", "Time between two renewals of the Lease of a node that this replica owns.")
}

// Describe implements prometheus.Collector.
func (gauges) Describe(out chan<- *prometheus.Desc) {
	connected, behind, objects, oldest, period := gaugeDescriptions()
	out <- connected
	out <- behind
	out <- objects
	out <- oldest
	out <- period
}

// Collect implements prometheus.Collector.
func (g gauges) Collect(out chan<- prometheus.Metric) {
	var connected, behind, objects int
	var first time.Time
	g.mu.Lock()
	period := g.leasePeriod().Seconds()
	for _, n := range g.nodes {
		if !n.connected {
			continue
		}
		connected++
		if n.progress.Behind == 0 {
			continue
		}
		behind++
		objects += n.progress.Behind
		if first.IsZero() || n.progress.Oldest.Before(first) {
			first = n.progress.Oldest
		}
	}
	g.mu.Unlock()
	age := 0.0
	if !first.IsZero() {
		age = max(0, time.Since(first).Seconds())
	}
	a, b, c, d, e := gaugeDescriptions()
	for desc, value := range map[*prometheus.Desc]float64{a: float64(connected), b: float64(behind), c: float64(objects), d: age, e: period} {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
}
