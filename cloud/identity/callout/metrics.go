package callout

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts the answers to the hub, how long they took, and how often one waited for a record.
type Metrics struct {
	answers    *prometheus.CounterVec
	waits      *prometheus.CounterVec
	answerTime prometheus.Histogram
}

// NewMetrics creates the metrics and registers them; a nil registerer leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	return &Metrics{
		answers: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "frond", Subsystem: "identity", Name: "answers_total", Help: "Answers to the hub about links.",
		}, []string{"result"}),
		waits: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "frond", Subsystem: "identity", Name: "record_waits_total", Help: "Links that waited for a record of another replica.",
		}, []string{"result"}),
		answerTime: f.NewHistogram(prometheus.HistogramOpts{
			Namespace: "frond", Subsystem: "identity", Name: "answer_seconds", Help: "From the hub's question to the answer.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 14),
		}),
	}
}

func (m *Metrics) countAnswer(result string) { m.answers.WithLabelValues(result).Inc() }
func (m *Metrics) countWait(came bool) {
	result := "missing"
	if came {
		result = "came"
	}
	m.waits.WithLabelValues(result).Inc()
}

func (m *Metrics) observeAnswer(where placement, took time.Duration) {
	m.countAnswer(string(where))
	m.answerTime.Observe(took.Seconds())
}
