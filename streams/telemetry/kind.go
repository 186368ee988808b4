package telemetry

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/failpoint"
	"github.com/frond-edge/frond/streams/subject"
)

// Kind is one kind of what nodes send: each has its own stream at the node, its own calls, and its own stream in the hub, so that no kind waits
// for another.
type Kind struct {
	// noun names what is sent in logs, prefix its metrics.
	noun, prefix string
	// received names the metric of what a cloudcore gets.
	received                                 string
	leafStream, leafSubject, hubStream, verb string
	plane                                    subject.Plane
	// The crash points: stored on the node's disk, sent to the hub, all but the last message of a batch sent to the stream.
	reachStored, reachSent, reachCommit func()
	// all matches all that a node has in the hub.
	all func(node string) string
	// encode returns the message of a line in the hub, without the headers that each kind has.
	encode func(node string, l *line) *nats.Msg
	// check refuses, wrapped in wire.ErrPermanent, a line that no node of this version sends.
	check func(l *line) error
	// group is whose lines HeaderPrevious chains; "" is nobody's.
	group func(l *line) string
}

// Samples are values of devices.
func Samples() Kind {
	return Kind{
		noun: "samples", prefix: "telemetry", received: "telemetry_samples_total", leafStream: subject.LeafTelemetryStream, leafSubject: subject.LeafTelemetrySubject,
		hubStream: subject.TelemetryStream, verb: subject.VerbTelemetry, plane: planeTelemetry, all: subject.NodeSamples,
		reachStored: func() { failpoint.At("telemetry.stored") },
		reachSent:   func() { failpoint.At("telemetry.sent") },
		reachCommit: func() { failpoint.At("telemetry.commit") },
		encode: func(node string, l *line) *nats.Msg {
			return &nats.Msg{Subject: subject.SampleSubject(node, l.Namespace, l.Device, l.Property), Header: nats.Header{}, Data: []byte(l.Value)}
		},
		check: func(l *line) error {
			s := l.sample()
			return s.Validate()
		},
		group: func(l *line) string { return l.Namespace + "/" + l.Device },
	}
}

// Messages are what apps publish on custom MQTT topics.
func Messages() Kind {
	return Kind{
		noun: "messages", prefix: "messages", received: "messages_received_total", leafStream: subject.LeafMessagesStream, leafSubject: subject.LeafMessagesSubject,
		hubStream: subject.MessagesStream, verb: subject.VerbMessages, plane: planeMessages, all: subject.NodeMessages,
		reachStored: func() { failpoint.At("messages.stored") },
		reachSent:   func() { failpoint.At("messages.sent") },
		reachCommit: func() { failpoint.At("messages.commit") },
		encode: func(node string, l *line) *nats.Msg {
			h := nats.Header{HeaderNode: {node}, HeaderTopic: {l.Topic}, HeaderBroker: {l.Broker}}
			if l.User != "" {
				h[HeaderUser] = []string{l.User}
			}
			return &nats.Msg{Subject: subject.MessageSubject(node, l.Topic), Header: h, Data: l.Payload}
		},
		check: func(l *line) error {
			m := l.message()
			return m.Validate()
		},
		group: func(*line) string { return "" },
	}
}

// Message is what an app published on a custom topic.
type Message struct {
	Topic   string
	Payload []byte
	// Broker took it: BrokerInternal or BrokerExternal.
	Broker string
	// User published it, "" where the broker does not say who did.
	User string
	// GatewayTime is when the gateway had it, by its own clock; ClockSynced says whether that clock was synchronized.
	GatewayTime time.Time
	ClockSynced bool
}

// The brokers of a Message.
const (
	BrokerInternal = "internal"
	BrokerExternal = "external"
)

const (
	// MaxPayload bounds the payload of a message; a node may allow less.
	MaxPayload = 256 << 10
	// MaxTopic bounds a topic, so that its subject, up to three times as long, is shorter than NATS allows.
	MaxTopic = 512
)

// Validate refuses, wrapped in wire.ErrPermanent, a message that cannot be stored in the hub.
func (m *Message) Validate() error {
	switch {
	case m.Topic == "" || len(m.Topic) > MaxTopic:
		return fmt.Errorf("%w: topic of %d bytes, want 1 to %d", wire.ErrPermanent, len(m.Topic), MaxTopic)
	case !utf8.ValidString(m.Topic) || strings.ContainsFunc(m.Topic, func(r rune) bool { return unicode.IsControl(r) || r == '#' || r == '+' }):
		return fmt.Errorf("%w: topic %.80q has a wildcard or a control character", wire.ErrPermanent, m.Topic)
	case len(m.Payload) > MaxPayload:
		return fmt.Errorf("%w: payload of %d bytes, at most %d", wire.ErrPermanent, len(m.Payload), MaxPayload)
	case m.Broker != BrokerInternal && m.Broker != BrokerExternal:
		return fmt.Errorf("%w: broker %.80q", wire.ErrPermanent, m.Broker)
	case len(m.User) > MaxTopic || strings.ContainsFunc(m.User, unicode.IsControl):
		return fmt.Errorf("%w: user %.80q", wire.ErrPermanent, m.User)
	}
	return nil
}

func newMessageLine(m *Message) line {
	return line{
		Topic: m.Topic, Payload: m.Payload, Broker: m.Broker, User: m.User, GatewayTime: m.GatewayTime.UnixMilli(), ClockSynced: m.ClockSynced,
	}
}

// message is the inverse of newMessageLine.
func (l *line) message() Message {
	return Message{
		Topic: l.Topic, Payload: l.Payload, Broker: l.Broker, User: l.User, GatewayTime: time.UnixMilli(l.GatewayTime), ClockSynced: l.ClockSynced,
	}
}
