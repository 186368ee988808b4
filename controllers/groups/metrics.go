package groups

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type groupMetrics struct {
	writes, evictions *prometheus.CounterVec
	held              *prometheus.GaugeVec
}

func newGroupMetrics(r prometheus.Registerer) groupMetrics {
	f := promauto.With(r)
	return groupMetrics{
		writes: f.NewCounterVec(prometheus.CounterOpts{
			Name: "frond_groups_writes_total", Help: "Writes for NodeGroups: of Nodes' labels, of statuses and of finalizers.",
		}, []string{"what"}),
		evictions: f.NewCounterVec(prometheus.CounterOpts{
			Name: "frond_groups_evictions_total", Help: "Requests to evict a pod whose node has left its group, by result.",
		}, []string{"result"}),
		held: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "frond_groups_held_evictions", Help: "NodeGroups of this replica whose evictions are held, by reason.",
		}, []string{"reason"}),
	}
}
