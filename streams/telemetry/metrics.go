package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
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
}

// NewStoreMetrics registers the metrics of a store; a nil registerer leaves them unregistered.
func NewStoreMetrics(reg prometheus.Registerer) *StoreMetrics {
	f := promauto.With(reg)
	return &StoreMetrics{
		Appended: f.NewCounter(prometheus.CounterOpts{Namespace: "frond", Name: "telemetry_appended_total", Help: "Samples of devices stored on this node's disk."}),
		Errors:   f.NewCounter(prometheus.CounterOpts{Namespace: "frond", Name: "telemetry_store_errors_total", Help: "Attempts to store samples on this node's disk that failed."}),
	}
}

// NewPumpMetrics registers the metrics of a pump.
func NewPumpMetrics(reg prometheus.Registerer) *PumpMetrics {
	f := promauto.With(reg)
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Namespace: "frond", Name: name, Help: help})
	}
	return &PumpMetrics{
		Dropped: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "frond", Name: "telemetry_dropped_total",
			Help: "Samples that did not reach the hub: dropped because too many waited (full), unreadable records (damaged), refused for good (refused).",
		}, []string{"reason"}),
		Refused:        f.NewCounter(prometheus.CounterOpts{Namespace: "frond", Name: "telemetry_refused_total", Help: "Samples of devices that Kubernetes does not assign to this node; the cloud keeps them as dead letters."}),
		Bytes:          f.NewCounter(prometheus.CounterOpts{Namespace: "frond", Name: "telemetry_sent_bytes_total", Help: "Bytes of samples sent over the link, compressed."}),
		WaitingRecords: gauge("telemetry_waiting_records", "Records of samples on this node's disk that the hub does not have; a record has up to 500 samples."),
		WaitingBytes:   gauge("telemetry_stored_bytes", "Bytes of the stream of samples on this node's disk."),
		Budget:         gauge("telemetry_link_take_bytes", "What this node's link is believed to carry in about a second, as samples show; half of it is on its way at a time."),
	}
}

// NewReceiverMetrics registers the metrics of a receiver.
func NewReceiverMetrics(reg prometheus.Registerer) *ReceiverMetrics {
	return &ReceiverMetrics{Samples: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Namespace: "frond", Name: "telemetry_samples_total",
		Help: "Samples that nodes sent: stored in the hub, repeated (the hub has them), foreign (of a device that is not the node's: dead-lettered).",
	}, []string{"result"})}
}
