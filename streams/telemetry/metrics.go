package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/frond-edge/frond/streams/internal/lines"
)

// StoreMetrics counts what a Store takes.
type StoreMetrics struct {
	Appended prometheus.Counter
	Errors   prometheus.Counter
}

// PumpMetrics counts what a Pump sends.
type PumpMetrics struct {
	Dropped        *prometheus.CounterVec
	Refused        prometheus.Counter
	Bytes          prometheus.Counter
	WaitingRecords prometheus.Gauge
	WaitingBytes   prometheus.Gauge
	Budget         prometheus.Gauge
}

// ReceiverMetrics counts what a Receiver stores.
type ReceiverMetrics struct {
	Samples *prometheus.CounterVec
	Trimmed *prometheus.CounterVec
}

// NewStoreMetrics registers the metrics of a store; a nil registerer leaves them unregistered.
func NewStoreMetrics(kind lines.Kind, reg prometheus.Registerer) *StoreMetrics {
	f := promauto.With(reg)
	return &StoreMetrics{
		Appended: f.NewCounter(prometheus.CounterOpts{Namespace: "frond", Subsystem: kind.Prefix, Name: "appended_total", Help: "Stored (" + kind.Noun + ") on this node's disk."}),
		Errors:   f.NewCounter(prometheus.CounterOpts{Namespace: "frond", Subsystem: kind.Prefix, Name: "store_errors_total", Help: "Attempts to store " + kind.Noun + " on this node's disk that failed."}),
	}
}

// NewPumpMetrics registers the metrics of a pump.
func NewPumpMetrics(kind lines.Kind, reg prometheus.Registerer) *PumpMetrics {
	f := promauto.With(reg)
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Namespace: "frond", Subsystem: kind.Prefix, Name: name, Help: help})
	}
	return &PumpMetrics{
		Dropped: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "frond", Subsystem: kind.Prefix, Name: "dropped_total",
			Help: "What did not reach the hub (" + kind.Noun + "): dropped because too much waited (full), unreadable records (damaged), refused for good (refused).",
		}, []string{"reason"}),
		Refused:        f.NewCounter(prometheus.CounterOpts{Namespace: "frond", Subsystem: kind.Prefix, Name: "refused_total", Help: "Samples of devices that Kubernetes does not assign to this node; the cloud keeps them as dead letters."}),
		Bytes:          f.NewCounter(prometheus.CounterOpts{Namespace: "frond", Subsystem: kind.Prefix, Name: "sent_bytes_total", Help: "Bytes of " + kind.Noun + " sent over the link, compressed."}),
		WaitingRecords: gauge("waiting_records", "Records of "+kind.Noun+" on this node's disk that the hub does not have; a record has up to 500 of them."),
		WaitingBytes:   gauge("stored_bytes", "Bytes of the stream of "+kind.Noun+" on this node's disk."),
		Budget:         gauge("link_take_bytes", "What this node's link is believed to carry in about a second, as "+kind.Noun+" show; half of it is on its way at a time."),
	}
}

// NewReceiverMetrics registers the metrics of a receiver.
func NewReceiverMetrics(kind lines.Kind, reg prometheus.Registerer) *ReceiverMetrics {
	f := promauto.With(reg)
	return &ReceiverMetrics{
		Samples: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "frond", Name: kind.Received,
			Help: "What nodes sent (" + kind.Noun + "): stored in the hub, repeated (the hub has them), foreign (of a device that is not the node's: dead-lettered).",
		}, []string{"result"}),
		Trimmed: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "frond", Subsystem: kind.Prefix, Name: "trimmed_total",
			Help: "What was removed from the hub's stream of a node that filled it (" + kind.Noun + "), so that those of other nodes stay.",
		}, []string{"node"}),
	}
}
