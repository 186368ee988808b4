package localapi

import (
	"errors"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/frond-edge/frond/leaf/localapi/caller"
)

// serverMetrics count the requests of the gateway's programs by the kind of their identity: the number of names has no bound.
type serverMetrics struct {
	requests       *prometheus.CounterVec
	watches        *prometheus.GaugeVec
	scopes         prometheus.GaugeFunc
	podListeners   prometheus.GaugeFunc
	revokedWatches prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, scopes, ways func() float64) (*serverMetrics, error) {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "frond", Subsystem: "localapi", Name: name, Help: help}
	}
	m := &serverMetrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts(opts("requests_total",
			"Requests and watches over TLS that have ended, by kind of identity and status.")), []string{"identity", "code"}),
		watches:        prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("watches", "Open watches over TLS.")), []string{"identity"}),
		scopes:         prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts("scopes", "Kinds that the cloud is asked to keep complete here.")), scopes),
		podListeners:   prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts("pod_listeners", "Addresses at which pods are served.")), ways),
		revokedWatches: prometheus.NewCounter(prometheus.CounterOpts(opts("watches_withdrawn_total", "Open watches that were ended as roles no longer allow them."))),
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.requests), reg.Register(m.watches), reg.Register(m.scopes), reg.Register(m.podListeners), reg.Register(m.revokedWatches))
}

func (m *serverMetrics) countRequest(kind caller.Kind, code int) {
	m.requests.WithLabelValues(string(kind), strconv.Itoa(code)).Inc()
}
