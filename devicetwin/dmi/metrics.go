package dmi

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	reports *prometheus.CounterVec // kind
	refused *prometheus.CounterVec // reason
	unknown prometheus.Counter
	calls   *prometheus.CounterVec // call, outcome
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "frond", Subsystem: "dmi", Name: name, Help: help}
	}
	m := &metrics{
		reports: prometheus.NewCounterVec(opts("reports_total", "Reports of mappers that were taken, by kind."), []string{"kind"}),
		refused: prometheus.NewCounterVec(opts("refused_total", "Calls and connections of mappers that were refused, by reason."), []string{"reason"}),
		unknown: prometheus.NewCounter(opts("unknown_devices_total", "Reports that were ignored because no Device of this node has the name.")),
		calls:   prometheus.NewCounterVec(opts("calls_total", "Calls to mappers, by call and outcome."), []string{"call", "outcome"}),
	}
	if reg == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.reports, m.refused, m.unknown, m.calls} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}
