// Package enginemetrics holds the counters of an engine of desired state: what it publishes, and what goes wrong meanwhile.
package enginemetrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Counters counts the work of one engine.
type Counters struct {
	Published      *prometheus.CounterVec // by operation and resource
	Bytes          prometheus.Counter
	Conflicts      prometheus.Counter
	StaleCache     prometheus.Counter
	Duplicates     prometheus.Counter
	Purged         prometheus.Counter
	Refused        prometheus.Counter
	Withheld       *prometheus.CounterVec // by resource
	Errors         prometheus.Counter
	Loads          prometheus.Counter
	PublishSeconds prometheus.Histogram
}

// New creates the counters and registers them; with nil they are kept and not exposed.
func New(reg prometheus.Registerer) *Counters {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: "frond_desired_" + name, Help: help})
	}
	return &Counters{
		Published: f.NewCounterVec(prometheus.CounterOpts{
			Name: "frond_desired_published_total", Help: "Messages published to nodes, by operation and resource.",
		}, []string{"op", "resource"}),
		Bytes:      counter("published_bytes_total", "Bytes of JSON published to nodes, before compression."),
		Conflicts:  counter("conflicts_total", "Publishes refused because the stream held another message than believed."),
		StaleCache: counter("behind_total", "Decisions put off because the cache had heard less of Kubernetes than what the stream held."),
		Duplicates: counter("repeated_total", "Publishes that the stream took for a repetition and did not store."),
		Purged:     counter("purged_total", "Tombstones purged after the node had them on disk."),
		Refused:    counter("refused_total", "Objects that can never be published, such as too large ones."),
		Withheld: f.NewCounterVec(prometheus.CounterOpts{
			Name: "frond_desired_withheld_total", Help: "Objects in protected namespaces that a node needed and was not given, by resource.",
		}, []string{"resource"}),
		Errors: counter("errors_total", "Attempts that ended in an error and are tried again."),
		Loads:  counter("loads_total", "Readings of what the stream holds for a node."),
		PublishSeconds: f.NewHistogram(prometheus.HistogramOpts{
			Name: "frond_desired_publish_seconds", Help: "Time of one publish until the stream has stored it.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16), // 0.5 ms to 16 s: from one round trip to the election of a lost leader
		}),
	}
}
