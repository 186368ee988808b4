package identity

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts admissions and refusals.
type Metrics struct {
	answers         *prometheus.CounterVec
	refusals        *prometheus.CounterVec
	lockouts        *prometheus.CounterVec
	kicks           *prometheus.CounterVec
	violations      *prometheus.CounterVec
	changes         *prometheus.CounterVec
	answerTime      prometheus.Histogram
	nodesByTimeLeft *prometheus.GaugeVec
}

// NewMetrics creates the metrics and registers them; a nil registerer leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "frond", Subsystem: "identity", Name: name, Help: help}, labels)
	}
	m := &Metrics{
		answers:    counters("answers_total", "Answers to the hub about links.", "result"),
		refusals:   counters("refusals_total", "Links, enrolments and renewals refused.", "reason"),
		lockouts:   counters("lockouts_total", "Times that wrong tokens locked somebody out for the rest of a minute.", "by"),
		kicks:      counters("kicks_total", "Links closed.", "reason"),
		violations: counters("offences_total", "Links that the hub closed for what came over them; without a node: in the lobby.", "node", "reason"),
		changes:    counters("changes_total", "Keys recorded.", "what"),
		answerTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "frond", Subsystem: "identity", Name: "answer_seconds", Help: "From the hub's question to the answer.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 14),
		}),
		nodesByTimeLeft: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "frond", Subsystem: "identity", Name: "nodes", Help: "Nodes by how long their key is still enough.",
		}, []string{"left"}),
	}
	if reg != nil {
		reg.MustRegister(m.answers, m.refusals, m.lockouts, m.kicks, m.violations, m.changes, m.answerTime, m.nodesByTimeLeft)
	}
	return m
}

func (m *Metrics) countAnswer(result string)  { m.answers.WithLabelValues(result).Inc() }
func (m *Metrics) countRefusal(reason Reason) { m.refusals.WithLabelValues(string(reason)).Inc() }
func (m *Metrics) countLockout(by string)     { m.lockouts.WithLabelValues(by).Inc() }
func (m *Metrics) countKick(reason Reason)    { m.kicks.WithLabelValues(string(reason)).Inc() }
func (m *Metrics) countViolation(node, reason string) {
	m.violations.WithLabelValues(node, reason).Inc()
}
func (m *Metrics) countKeyChange(what string) { m.changes.WithLabelValues(what).Inc() }
func (m *Metrics) observeAnswer(where placement, took time.Duration) {
	m.countAnswer(string(where))
	m.answerTime.Observe(took.Seconds())
}

// countNodes counts the records by their remaining lifetime.
func (m *Metrics) countNodes(records []*Record, now time.Time) {
	const day = 24 * time.Hour
	count := map[string]int{"revoked": 0, "expired": 0, "day": 0, "week": 0, "more": 0}
	for _, r := range records {
		left := r.Expires.Sub(now)
		switch {
		case !r.RevokedAt.IsZero() || r.Key == "":
			count["revoked"]++
		case left <= 0:
			count["expired"]++
		case left <= day:
			count["day"]++
		case left <= 7*day:
			count["week"]++
		default:
			count["more"]++
		}
	}
	for left, n := range count {
		m.nodesByTimeLeft.WithLabelValues(left).Set(float64(n))
	}
}
