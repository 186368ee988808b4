package rules

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// metrics are those of all rules of a replica.
type metrics struct {
	messages *prometheus.CounterVec
	waiting  *prometheus.GaugeVec
}

// ruleMetrics are the counters of one rule.
type ruleMetrics struct {
	delivered, retried, gaveUp prometheus.Counter
}

func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "frond", Subsystem: "rules", Name: "messages_total",
			Help: "Messages of rules by result: delivered, retried (an attempt failed), dead (given up, a dead letter).",
		}, []string{"namespace", "rule", "result"}),
		waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "frond", Subsystem: "rules", Name: "waiting_messages",
			Help: "Messages that the target of a rule has not accepted, when its status was last looked at.",
		}, []string{"namespace", "rule"}),
	}
	for _, c := range []prometheus.Collector{m.messages, m.waiting} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("metrics of rules: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) of(key types.NamespacedName) ruleMetrics {
	counter := func(result string) prometheus.Counter {
		return m.messages.WithLabelValues(key.Namespace, key.Name, result)
	}
	return ruleMetrics{delivered: counter("delivered"), retried: counter("retried"), gaveUp: counter("dead")}
}

// forget removes the series of a rule that is gone, or that another replica owns.
func (m *metrics) forget(key types.NamespacedName) {
	m.messages.DeletePartialMatch(prometheus.Labels{"namespace": key.Namespace, "rule": key.Name})
	m.waiting.DeleteLabelValues(key.Namespace, key.Name)
}
