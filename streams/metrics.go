package streams

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts the messages of this process. Create one per process with NewMetrics.
type Metrics struct {
	published          *prometheus.CounterVec
	conflicts          prometheus.Counter
	delivered          prometheus.Counter
	acked              prometheus.Counter
	ignored            prometheus.Counter
	deadLetters        *prometheus.CounterVec
	deadLettersDropped *prometheus.CounterVec
	heartbeatsDropped  prometheus.Counter
	attaches           *prometheus.CounterVec
	latency            prometheus.Histogram
	outboxDepth        *prometheus.GaugeVec
	outboxAge          *prometheus.GaugeVec
	reports            *prometheus.CounterVec
	calls              *prometheus.CounterVec
	pendingObjects     prometheus.Gauge
	pendingBytes       prometheus.Gauge
	pieces             *prometheus.CounterVec
	parts              *prometheus.CounterVec
	linkBudget         *prometheus.GaugeVec
}

// NewMetrics returns the metrics and registers them; a nil registerer leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "frond", Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "frond", Name: name, Help: help}, labels)
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "frond", Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "frond", Name: name, Help: help})
	}
	m := &Metrics{
		published:          counters("published_total", "Messages stored by a stream, by plane and operation.", "plane", "op"),
		conflicts:          counter("publish_conflicts_total", "Publishes refused because another writer was first."),
		delivered:          counter("delivered_total", "Desired messages that reached this node."),
		acked:              counter("acked_total", "Desired messages that are on this node's disk and acknowledged."),
		ignored:            counter("delivery_ignored_total", "Desired messages delivered twice and recognised."),
		deadLetters:        counters("dead_letters_total", "Messages that can never be handled, by plane.", "plane"),
		deadLettersDropped: counters("garbage_dropped_total", "Messages that cannot be read and were too many to be kept as dead letters, by plane.", "plane"),
		heartbeatsDropped:  counter("beats_dropped_total", "Heartbeats of nodes that send too many of them."),
		attaches:           counters("attaches_total", "Attaches by result.", "result"),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "frond", Name: "delivery_seconds", Help: "From the change seen in the cloud to the node's disk; holds both clocks' difference.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 18),
		}),
		outboxDepth:    gauges("outbox_messages", "Messages that wait for the link, by class.", "class"),
		outboxAge:      gauges("outbox_oldest_seconds", "Age of the oldest waiting message, by class.", "class"),
		reports:        counters("reports_total", "Reports taken from the hub, by plane and result.", "plane", "result"),
		calls:          counters("calls_total", "Calls answered for nodes, by verb and result.", "verb", "result"),
		pendingObjects: gauge("delivery_awaited_objects", "Large objects that this node fetches in pieces and does not have whole yet."),
		pendingBytes:   gauge("delivery_awaited_bytes", "Bytes of them that are still to come."),
		pieces:         counters("pieces_total", "Pieces of large objects asked for by this node, by result.", "result"),
		parts:          counters("parts_total", "Parts of large reports sent by this node, by result.", "result"),
		linkBudget:     gauges("link_take_bytes", "What this node's link is believed to carry in about a second, by plane: no more is on its way at a time.", "plane"),
	}
	if reg != nil {
		reg.MustRegister(m.published, m.conflicts, m.delivered, m.acked, m.ignored, m.deadLetters, m.deadLettersDropped, m.heartbeatsDropped, m.attaches, m.latency,
			m.outboxDepth, m.outboxAge, m.reports, m.calls, m.pendingObjects, m.pendingBytes, m.pieces, m.parts, m.linkBudget)
	}
	return m
}
