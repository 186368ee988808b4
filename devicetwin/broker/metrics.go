package broker

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	messages *prometheus.CounterVec // kind
	refused  *prometheus.CounterVec // reason
	stale    prometheus.Counter
	future   prometheus.Counter
	overflow prometheus.Counter
	errors   prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "frond", Subsystem: "mqtt", Name: name, Help: help}
	}
	m := &metrics{
		messages: prometheus.NewCounterVec(opts("messages_total", "Messages of apps that were handled, by the topic's kind."), []string{"kind"}),
		refused:  prometheus.NewCounterVec(opts("refused_total", "Log-ins and messages that were refused, by reason."), []string{"reason"}),
		stale:    prometheus.NewCounter(opts("stale_values_total", "Values that were ignored because a newer one was known.")),
		future:   prometheus.NewCounter(opts("future_times_total", "Times of devices that were replaced because they were in the future.")),
		overflow: prometheus.NewCounter(opts("overflows_total", "Times that messages of QoS 0 came faster than they could be handled, and some were dropped.")),
		errors:   prometheus.NewCounter(opts("broker_errors_total", "Errors of nats-server, such as a publish or subscription that is not permitted.")),
	}
	if reg == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.messages, m.refused, m.stale, m.future, m.overflow, m.errors} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}
