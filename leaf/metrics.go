package leaf

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	up         prometheus.Gauge
	reconnects prometheus.Counter
	redials    prometheus.Counter
	dropped    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "frond", Subsystem: "link", Name: name, Help: help}
	}
	m := &metrics{
		up:         prometheus.NewGauge(prometheus.GaugeOpts(opts("up", "1 while the leaf is linked to the hub."))),
		reconnects: prometheus.NewCounter(prometheus.CounterOpts(opts("reconnects_total", "Links made after the first one."))),
		redials:    prometheus.NewCounter(prometheus.CounterOpts(opts("redials_total", "Dials ordered while there was no link."))),
		dropped:    prometheus.NewCounter(prometheus.CounterOpts(opts("dropped_total", "Links closed because probes got no answer."))),
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.up), reg.Register(m.reconnects), reg.Register(m.redials), reg.Register(m.dropped))
}
