package localapi

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/frond-edge/frond/leaf/localapi/caller"
)

// serverMetrics count the requests of the gateway's programs by the kind of their identity: the number of names has no bound.
type serverMetrics struct {
	requests       *prometheus.CounterVec
	watches        *prometheus.GaugeVec
	revokedWatches prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, scopes, podListeners func() float64) *serverMetrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "frond", Subsystem: "localapi", Name: name, Help: help}
	}
	f := promauto.With(reg)
	f.NewGaugeFunc(prometheus.GaugeOpts(opts("scopes", "Kinds that the cloud is asked to keep complete here.")), scopes)
	f.NewGaugeFunc(prometheus.GaugeOpts(opts("pod_listeners", "Addresses at which pods are served.")), podListeners)
	return &serverMetrics{
		requests: f.NewCounterVec(prometheus.CounterOpts(opts("requests_total",
			"Requests and watches over TLS that have ended, by kind of identity and status.")), []string{"identity", "code"}),
		watches:        f.NewGaugeVec(prometheus.GaugeOpts(opts("watches", "Open watches over TLS.")), []string{"identity"}),
		revokedWatches: f.NewCounter(prometheus.CounterOpts(opts("watches_withdrawn_total", "Open watches that were ended as roles no longer allow them."))),
	}
}

func (m *serverMetrics) countRequest(kind caller.Kind, code int) {
	m.requests.WithLabelValues(string(kind), strconv.Itoa(code)).Inc()
}
