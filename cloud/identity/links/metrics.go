package links

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/frond-edge/frond/cloud/identity"
)

// Metrics counts closed links, and nodes by the time that is left to their keys.
type Metrics struct {
	kicks           *prometheus.CounterVec
	violations      *prometheus.CounterVec
	nodesByTimeLeft *prometheus.GaugeVec
}

// NewMetrics creates the metrics and registers them; a nil registerer leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Namespace: "frond", Subsystem: "identity", Name: name, Help: help}, labels)
	}
	return &Metrics{
		kicks:      counters("kicks_total", "Links closed.", "reason"),
		violations: counters("offences_total", "Links that the hub closed for what came over them; without a node: in the lobby.", "node", "reason"),
		nodesByTimeLeft: f.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "frond", Subsystem: "identity", Name: "nodes", Help: "Nodes by how long their key is still enough.",
		}, []string{"left"}),
	}
}

func (m *Metrics) countKick(reason identity.Reason) { m.kicks.WithLabelValues(string(reason)).Inc() }

func (m *Metrics) countViolation(node, reason string) {
	m.violations.WithLabelValues(node, reason).Inc()
}

// countNodes counts the records by their remaining lifetime.
func (m *Metrics) countNodes(records []*identity.Record, now time.Time) {
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
