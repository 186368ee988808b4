package identity

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts recorded keys and refusals.
type Metrics struct {
	refusals *prometheus.CounterVec
	lockouts *prometheus.CounterVec
	changes  *prometheus.CounterVec
}

// NewMetrics creates the metrics and registers them; a nil registerer leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Namespace: "frond", Subsystem: "identity", Name: name, Help: help}, labels)
	}
	return &Metrics{
		refusals: counters("refusals_total", "Links, enrolments and renewals refused.", "reason"),
		lockouts: counters("lockouts_total", "Times that wrong tokens locked somebody out for the rest of a minute.", "by"),
		changes:  counters("changes_total", "Keys recorded.", "what"),
	}
}

// CountRefusal counts a refused link, enrolment or renewal.
func (m *Metrics) CountRefusal(reason Reason) { m.refusals.WithLabelValues(string(reason)).Inc() }

// CountLockout counts a sender or token that was locked out, by what locked it out.
func (m *Metrics) CountLockout(by string) { m.lockouts.WithLabelValues(by).Inc() }

func (m *Metrics) countKeyChange(what string) { m.changes.WithLabelValues(what).Inc() }
