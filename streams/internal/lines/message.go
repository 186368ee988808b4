package lines

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/frond-edge/frond/api/wire"
)

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

// NewMessageLine returns the line of a message, without its numbers.
func NewMessageLine(m *Message) Line {
	return Line{
		Topic: m.Topic, Payload: m.Payload, Broker: m.Broker, User: m.User, GatewayTime: m.GatewayTime.UnixMilli(), ClockSynced: m.ClockSynced,
	}
}
