package leaf

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type linkMetrics struct {
	up         prometheus.Gauge
	reconnects prometheus.Counter
	redials    prometheus.Counter
	dropped    prometheus.Counter
	free       prometheus.Gauge
	reserve    prometheus.Gauge
	restarts   prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*linkMetrics, error) {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "frond", Subsystem: "link", Name: name, Help: help}
	}
	m := &linkMetrics{
		up:         prometheus.NewGauge(prometheus.GaugeOpts(opts("up", "1 while the leaf is linked to the hub."))),
		reconnects: prometheus.NewCounter(prometheus.CounterOpts(opts("reconnects_total", "Links made after the first one."))),
		redials:    prometheus.NewCounter(prometheus.CounterOpts(opts("redials_total", "Dials ordered while there was no link."))),
		dropped:    prometheus.NewCounter(prometheus.CounterOpts(opts("dropped_total", "Links closed because probes got no answer."))),
	}
	disk := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "frond", Subsystem: "disk", Name: name, Help: help}
	}
	m.free = prometheus.NewGauge(prometheus.GaugeOpts(disk("free_bytes", "Free space on the store's disk, the reserve not counted.")))
	m.reserve = prometheus.NewGauge(prometheus.GaugeOpts(disk("reserve_bytes", "Space kept for control state.")))
	m.restarts = prometheus.NewCounter(prometheus.CounterOpts(disk("restarts_total", "Starts of the leaf server after it had met a full disk.")))
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.free), reg.Register(m.reserve), reg.Register(m.restarts), reg.Register(m.up), reg.Register(m.reconnects), reg.Register(m.redials), reg.Register(m.dropped))
}
