package localapi

import (
	"errors"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics tell what programs of the gateway do, by the kind of their identity: names would be without number.
type metrics struct {
	requests *prometheus.CounterVec
	watches  *prometheus.GaugeVec
	scopes   prometheus.GaugeFunc
	ways     prometheus.GaugeFunc
	ends     prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, scopes, ways func() float64) (*metrics, error) {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "frond", Subsystem: "localapi", Name: name, Help: help}
	}
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts(opts("requests_total",
			"Requests and watches over TLS that have ended, by kind of identity and status.")), []string{"identity", "code"}),
		watches: prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("watches", "Open watches over TLS.")), []string{"identity"}),
		scopes:  prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts("scopes", "Kinds that the cloud is asked to keep complete here.")), scopes),
		ways:    prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts("pod_listeners", "Addresses at which pods are served.")), ways),
		ends:    prometheus.NewCounter(prometheus.CounterOpts(opts("watches_withdrawn_total", "Open watches that were ended as roles no longer allow them."))),
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.requests), reg.Register(m.watches), reg.Register(m.scopes), reg.Register(m.ways), reg.Register(m.ends))
}

func (m *metrics) ended(kind identity, code int) {
	m.requests.WithLabelValues(string(kind), strconv.Itoa(code)).Inc()
}
