// Package messages has the custom MQTT topics of KubeEdge's apps, whose messages go to the cloud as they are, and the way of each message from a
// broker to the gateway's disk: what is too large or has no place is refused and counted.
package messages

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// DefaultMaxPayload is what a link of 50 kbit/s carries within the time that a request may take.
const DefaultMaxPayload = 64 << 10

// ErrRefused says that a message is never stored: it is too large, or its topic has no place in the cloud.
var ErrRefused = errors.New("the message is refused")

// Filters returns the MQTT filters of the custom topics, as KubeEdge's edgecore subscribes to them.
func Filters() []string { return []string{"+/user/#", "SYS/dis/upload_records", "$hw/events/upload/#"} }

// Matches reports whether a topic is a custom one. As in MQTT, a wildcard at the start does not match "$".
func Matches(topic string) bool {
	switch {
	case topic == "SYS/dis/upload_records", topic == "$hw/events/upload", strings.HasPrefix(topic, "$hw/events/upload/"):
		return true
	case strings.HasPrefix(topic, "$"):
		return false
	}
	_, rest, _ := strings.Cut(topic, "/")
	return rest == "user" || strings.HasPrefix(rest, "user/")
}

// Message is what an app published on a custom topic.
type Message struct {
	Topic   string
	Payload []byte
	// User published it, "" where it is not known.
	User string
	// External: an external broker took it.
	External bool
	Received time.Time
}

// Sink stores messages in the order of its calls.
type Sink interface {
	// Enqueue takes a message. The channel gives one answer: nil when the message is on disk, synced. Enqueue blocks while too much waits. The error
	// wraps ErrRefused if the message is never stored.
	Enqueue(ctx context.Context, m Message) (<-chan error, error)
}

// Gate is before a Sink: it refuses and counts.
type Gate struct {
	sink       Sink
	maxPayload int
	messages   *prometheus.CounterVec
	log        *zap.Logger
}

// NewGate returns a gate; maxPayload bounds payloads in bytes, 0 is DefaultMaxPayload.
func NewGate(sink Sink, maxPayload int, reg prometheus.Registerer, log *zap.Logger) (*Gate, error) {
	if maxPayload == 0 {
		maxPayload = DefaultMaxPayload
	}
	g := &Gate{sink: sink, maxPayload: maxPayload, log: log, messages: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "frond", Subsystem: "mqtt", Name: "custom_messages_total",
		Help: "Messages on custom topics, by broker and result: stored, refused (too large, or a topic that cannot be stored), failed (the disk), " +
			"dropped (QoS 0 beyond what may wait), busy (QoS 1 beyond it: no PUBACK), unclaimed (a topic that nothing of the gateway reads).",
	}, []string{"broker", "result"})}
	if reg == nil {
		return g, nil
	}
	return g, reg.Register(g.messages)
}

// Count counts a message that did not reach the sink.
func (g *Gate) Count(external bool, result string) {
	broker := "internal"
	if external {
		broker = "external"
	}
	g.messages.WithLabelValues(broker, result).Inc()
}

// Enqueue is Sink's. Settle must be called with each answer.
func (g *Gate) Enqueue(ctx context.Context, m Message) (<-chan error, error) {
	if len(m.Payload) > g.maxPayload {
		return nil, fmt.Errorf("%w: payload of %d bytes, devices.messages.maxPayloadKiB allows %d", ErrRefused, len(m.Payload), g.maxPayload)
	}
	return g.sink.Enqueue(ctx, m)
}

// Settle counts an answer, and logs it if it is an error.
func (g *Gate) Settle(m Message, err error) {
	switch {
	case err == nil:
		g.Count(m.External, "stored")
		return
	case errors.Is(err, ErrRefused):
		g.Count(m.External, "refused")
	default:
		g.Count(m.External, "failed")
	}
	g.log.Warn("message not stored", zap.String("topic", clip(m.Topic)), zap.Int("bytes", len(m.Payload)), zap.Error(err))
}

// clip shortens what an app sent for the log.
func clip(s string) string {
	const longest = 128
	if len(s) > longest {
		return s[:longest] + "…"
	}
	return s
}
