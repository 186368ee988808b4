package enroll

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type renewerMetrics struct {
	expires    prometheus.Gauge
	clockAhead prometheus.Gauge
	renewals   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*renewerMetrics, error) {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "frond", Subsystem: "identity", Name: name, Help: help}
	}
	m := &renewerMetrics{
		expires:    prometheus.NewGauge(prometheus.GaugeOpts(opts("expires_timestamp_seconds", "When the gateway's key expires; 0 before it is enrolled."))),
		clockAhead: prometheus.NewGauge(prometheus.GaugeOpts(opts("clock_ahead_seconds", "How far the machine's clock was ahead of the cloud's when it last gave its time."))),
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts(opts("renewals_total", "Tries to renew the gateway's key, by result.")),
			[]string{"result"}),
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.expires), reg.Register(m.clockAhead), reg.Register(m.renewals))
}
