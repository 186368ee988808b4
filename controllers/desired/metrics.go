package desired

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// registerGauges registers what is counted anew for each scrape.
func registerGauges(reg prometheus.Registerer, t *nodeTable) {
	f := promauto.With(reg)
	gauge := func(name, help string, labels prometheus.Labels, of func(*nodeState) int) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: "frond_desired_" + name, Help: help, ConstLabels: labels}, func() float64 { return t.sum(of) })
	}
	gauge("nodes", "Edge nodes whose desired state this replica publishes.", nil, func(s *nodeState) int { return boolToInt(s.published.Loaded()) })
	gauge("unloaded_nodes", "Edge nodes of this replica of which it has not read yet what the stream holds.", nil,
		func(s *nodeState) int { return boolToInt(t.work.AwaitsLoad(s.work)) })
	gauge("held_nodes", "Nodes with deletions that this replica holds until an operator confirms them.", nil,
		func(s *nodeState) int { return boolToInt(s.guard.Held()) })
	gauge("held_deletions", "Objects with held deletions.", nil, func(s *nodeState) int { return s.guard.Deferred() })
	for state, complete := range map[string]bool{"filling": false, "complete": true} {
		gauge("scopes", "Granted scopes of this replica's nodes, by whether all their objects have been published.",
			prometheus.Labels{"state": state}, func(s *nodeState) int { return s.grants.Count(complete) })
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "frond_desired_queue", Help: "Objects waiting to be compared or published.",
	}, func() float64 { return float64(t.work.Len()) })
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "frond_desired_followed_kinds", Help: "Kinds that this replica keeps in its cache for scopes, or while the apiserver serves them.",
	}, func() float64 { return float64(max(len(t.objects.Kinds())-len(t.fixed), 0)) })
}
