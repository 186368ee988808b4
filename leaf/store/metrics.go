package store

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type storeMetrics struct {
	objects         prometheus.Gauge
	bytes           prometheus.Gauge
	quarantined     prometheus.Counter
	damaged         prometheus.Counter
	rebuilt         prometheus.Counter
	restored        *prometheus.CounterVec
	lastGoodSavedAt prometheus.Gauge
	lastGoodBytes   prometheus.Counter
	applied         prometheus.Counter
	ignored         *prometheus.CounterVec
	mergeErrors     prometheus.Counter
	syncSeconds     prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) (*storeMetrics, error) {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "frond", Subsystem: "store", Name: name, Help: help}
	}
	m := &storeMetrics{
		objects:     prometheus.NewGauge(prometheus.GaugeOpts(opts("objects", "Objects held."))),
		bytes:       prometheus.NewGauge(prometheus.GaugeOpts(opts("object_bytes", "Bytes of JSON of the objects held."))),
		quarantined: prometheus.NewCounter(prometheus.CounterOpts(opts("quarantined_total", "Damaged or foreign records put aside."))),
		damaged:     prometheus.NewCounter(prometheus.CounterOpts(opts("damaged_total", "Openings that found damage and cleared the cursor."))),
		rebuilt:     prometheus.NewCounter(prometheus.CounterOpts(opts("rebuilt_total", "Buckets created again because a record could not be read."))),
		restored: prometheus.NewCounterVec(prometheus.CounterOpts(opts("restored_total", "Damaged or lost records taken from the copy, by whether they are the newest.")),
			[]string{"version"}),
		lastGoodSavedAt: prometheus.NewGauge(prometheus.GaugeOpts(opts("copy_timestamp_seconds", "When the last-good copy was written; 0 for not since the start."))),
		lastGoodBytes:   prometheus.NewCounter(prometheus.CounterOpts(opts("copy_written_bytes_total", "Bytes written for the last-good copy."))),
		applied:         prometheus.NewCounter(prometheus.CounterOpts(opts("applied_total", "Messages of the hub that changed the store."))),
		ignored: prometheus.NewCounterVec(prometheus.CounterOpts(opts("ignored_total", "Messages of the hub that changed nothing.")),
			[]string{"reason"}),
		mergeErrors: prometheus.NewCounter(prometheus.CounterOpts(opts("merge_errors_total", "Merges that failed; the cloud's object was kept."))),
		syncSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "frond", Subsystem: "store", Name: "sync_seconds",
			Help: "Time of one commit, from the first write to the server's answer after its sync to disk.",
			// 0.5 ms (NVMe) to 1 s (worn eMMC).
			Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1},
		}),
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(
		registerOrReuse(reg, &m.objects), registerOrReuse(reg, &m.bytes), registerOrReuse(reg, &m.quarantined), registerOrReuse(reg, &m.damaged), registerOrReuse(reg, &m.rebuilt),
		registerOrReuse(reg, &m.restored), registerOrReuse(reg, &m.lastGoodSavedAt), registerOrReuse(reg, &m.lastGoodBytes),
		registerOrReuse(reg, &m.applied), registerOrReuse(reg, &m.ignored), registerOrReuse(reg, &m.mergeErrors), registerOrReuse(reg, &m.syncSeconds))
}

// registerOrReuse registers c, or replaces it by the collector that an earlier store in this process has registered.
func registerOrReuse[C prometheus.Collector](reg prometheus.Registerer, c *C) error {
	err := reg.Register(*c)
	if known, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if old, ok := known.ExistingCollector.(C); ok {
			*c = old
			return nil
		}
	}
	return err
}
