package desired

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	published      *prometheus.CounterVec
	bytes          prometheus.Counter
	conflicts      prometheus.Counter
	staleCache     prometheus.Counter
	duplicates     prometheus.Counter
	purged         prometheus.Counter
	refused        prometheus.Counter
	withheld       *prometheus.CounterVec
	errors         prometheus.Counter
	loads          prometheus.Counter
	publishSeconds prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer, t *nodeTable) *metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: "frond_desired_" + name, Help: help})
	}
	m := &metrics{
		published: f.NewCounterVec(prometheus.CounterOpts{
			Name: "frond_desired_published_total", Help: "Messages published to nodes, by operation and resource.",
		}, []string{"op", "resource"}),
		bytes:      counter("published_bytes_total", "Bytes of JSON published to nodes, before compression."),
		conflicts:  counter("conflicts_total", "Publishes refused because the stream held another message than believed."),
		staleCache: counter("behind_total", "Decisions put off because the cache had heard less of Kubernetes than what the stream held."),
		duplicates: counter("repeated_total", "Publishes that the stream took for a repetition and did not store."),
		purged:     counter("purged_total", "Tombstones purged after the node had them on disk."),
		refused:    counter("refused_total", "Objects that can never be published, such as too large ones."),
		withheld: f.NewCounterVec(prometheus.CounterOpts{
			Name: "frond_desired_withheld_total", Help: "Objects in protected namespaces that a node needed and was not given, by resource.",
		}, []string{"resource"}),
		errors: counter("errors_total", "Attempts that ended in an error and are tried again."),
		loads:  counter("loads_total", "Readings of what the stream holds for a node."),
		publishSeconds: f.NewHistogram(prometheus.HistogramOpts{
			Name: "frond_desired_publish_seconds", Help: "Time of one publish until the stream has stored it.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16), // 0.5 ms to 16 s: from one round trip to the election of a lost leader
		}),
	}
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
	return m
}
