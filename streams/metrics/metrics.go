// Package metrics counts what the packages below streams move.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts the messages of this process. Create one per process with New.
type Metrics struct {
	Published          *prometheus.CounterVec
	Conflicts          prometheus.Counter
	Delivered          prometheus.Counter
	Acked              prometheus.Counter
	Ignored            prometheus.Counter
	DeadLetters        *prometheus.CounterVec
	DeadLettersDropped *prometheus.CounterVec
	HeartbeatsDropped  prometheus.Counter
	Attaches           *prometheus.CounterVec
	Latency            prometheus.Histogram
	OutboxDepth        *prometheus.GaugeVec
	OutboxAge          *prometheus.GaugeVec
	Reports            *prometheus.CounterVec
	Calls              *prometheus.CounterVec
	PendingObjects     prometheus.Gauge
	PendingBytes       prometheus.Gauge
	Pieces             *prometheus.CounterVec
	Parts              *prometheus.CounterVec
	LinkBudget         *prometheus.GaugeVec
}

// New returns the metrics and registers them; a nil registerer leaves them unregistered.
func New(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Namespace: "frond", Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Namespace: "frond", Name: name, Help: help}, labels)
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Namespace: "frond", Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Namespace: "frond", Name: name, Help: help})
	}
	return &Metrics{
		Published:          counters("published_total", "Messages stored by a stream, by plane and operation.", "plane", "op"),
		Conflicts:          counter("publish_conflicts_total", "Publishes refused because another writer was first."),
		Delivered:          counter("delivered_total", "Desired messages that reached this node."),
		Acked:              counter("acked_total", "Desired messages that are on this node's disk and acknowledged."),
		Ignored:            counter("delivery_ignored_total", "Desired messages delivered twice and recognised."),
		DeadLetters:        counters("dead_letters_total", "Messages that can never be handled, by plane.", "plane"),
		DeadLettersDropped: counters("garbage_dropped_total", "Messages that cannot be read and were too many to be kept as dead letters, by plane.", "plane"),
		HeartbeatsDropped:  counter("beats_dropped_total", "Heartbeats of nodes that send too many of them."),
		Attaches:           counters("attaches_total", "Attaches by result.", "result"),
		Latency: f.NewHistogram(prometheus.HistogramOpts{
			Namespace: "frond", Name: "delivery_seconds", Help: "From the change seen in the cloud to the node's disk; holds both clocks' difference.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 18),
		}),
		OutboxDepth:    gauges("outbox_messages", "Messages that wait for the link, by class.", "class"),
		OutboxAge:      gauges("outbox_oldest_seconds", "Age of the oldest waiting message, by class.", "class"),
		Reports:        counters("reports_total", "Reports taken from the hub, by plane and result.", "plane", "result"),
		Calls:          counters("calls_total", "Calls answered for nodes, by verb and result.", "verb", "result"),
		PendingObjects: gauge("delivery_awaited_objects", "Large objects that this node fetches in pieces and does not have whole yet."),
		PendingBytes:   gauge("delivery_awaited_bytes", "Bytes of them that are still to come."),
		Pieces:         counters("pieces_total", "Pieces of large objects asked for by this node, by result.", "result"),
		Parts:          counters("parts_total", "Parts of large reports sent by this node, by result.", "result"),
		LinkBudget:     gauges("link_take_bytes", "What this node's link is believed to carry in about a second, by plane: no more is on its way at a time.", "plane"),
	}
}
