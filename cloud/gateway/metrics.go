package gateway

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the counters of what the tunnels do not count themselves.
type metrics struct {
	refused *prometheus.CounterVec
	passed  prometheus.Counter
	passing prometheus.Gauge
	opening prometheus.Histogram
	ports   prometheus.Gauge
}

// The reasons of refusals, as labels.
const (
	refusedSilent    = "silent"
	refusedBlocked   = "shut-out"
	refusedByNode    = "by-node"
	refusedTooMany   = "too-many"
	refusedDial      = "not-reachable"
	refusedConflict  = "address-conflict"
	refusedRequest   = "bad-request"
	refusedForbidden = "forbidden"
)

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "frond", Subsystem: "gateway", Name: name, Help: help}
	}
	return &metrics{
		refused: f.NewCounterVec(prometheus.CounterOpts(opts("refused_total", "Requests refused, by reason.")), []string{"reason"}),
		passed:  f.NewCounter(prometheus.CounterOpts(opts("passed_total", "Connections to targets that are not edge nodes."))),
		passing: f.NewGauge(prometheus.GaugeOpts(opts("passing", "Connections that are open to targets that are not edge nodes."))),
		ports:   f.NewGauge(prometheus.GaugeOpts(opts("ports", "Ports of nodes that are open, for an apiserver that knows no proxy."))),
		opening: f.NewHistogram(prometheus.HistogramOpts{
			Namespace: "frond", Subsystem: "gateway", Name: "open_seconds", Help: "From asking for a stream until the node has accepted it.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 12),
		}),
	}
}
