package tunnel

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/frond-edge/frond/streams/tunnel/protocol"
)

// Metrics counts the streams of this process. Create one per process with NewMetrics.
type Metrics struct {
	streams  prometheus.Gauge
	opened   prometheus.Counter
	refused  *prometheus.CounterVec
	broken   *prometheus.CounterVec
	sent     prometheus.Counter
	received prometheus.Counter
}

// NewMetrics returns the metrics and registers them; a nil registerer leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "frond", Subsystem: "tunnel", Name: name, Help: help}
	}
	bytes := f.NewCounterVec(prometheus.CounterOpts(opts("bytes_total", "Bytes of streams, by direction.")), []string{"direction"})
	return &Metrics{
		streams:  f.NewGauge(prometheus.GaugeOpts(opts("streams", "Streams that are open or being opened."))),
		opened:   f.NewCounter(prometheus.CounterOpts(opts("opened_total", "Streams that both ends agreed on."))),
		refused:  f.NewCounterVec(prometheus.CounterOpts(opts("refused_total", "Streams not opened and messages not taken, by reason.")), []string{"reason"}),
		broken:   f.NewCounterVec(prometheus.CounterOpts(opts("broken_total", "Streams that ended with an error, by reason.")), []string{"reason"}),
		sent:     bytes.WithLabelValues("sent"),
		received: bytes.WithLabelValues("received"),
	}
}

func (m *Metrics) countRefused(code protocol.Code) {
	m.refused.WithLabelValues(code.MetricLabel()).Inc()
}

func (m *Metrics) countBroken(code protocol.Code) { m.broken.WithLabelValues(code.MetricLabel()).Inc() }
