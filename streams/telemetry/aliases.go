package telemetry

import "github.com/frond-edge/frond/streams/internal/lines"

type (
	// Kind is one kind of what nodes send.
	Kind = lines.Kind
	// Sample is one value of one property of a device.
	Sample = lines.Sample
	// Message is what an app published on a custom MQTT topic.
	Message = lines.Message
	// Reply is the answer to a request.
	Reply = lines.Reply
)

// The brokers of a Message.
const (
	BrokerInternal = lines.BrokerInternal
	BrokerExternal = lines.BrokerExternal
)

// The largest value of a sample, and payload and topic of a message.
const (
	MaxValue   = lines.MaxValue
	MaxPayload = lines.MaxPayload
	MaxTopic   = lines.MaxTopic
)

// The headers of messages in the hub; package lines says what they mean.
const (
	HeaderNumber      = lines.HeaderNumber
	HeaderPrevious    = lines.HeaderPrevious
	HeaderRun         = lines.HeaderRun
	HeaderDeviceTime  = lines.HeaderDeviceTime
	HeaderGatewayTime = lines.HeaderGatewayTime
	HeaderClock       = lines.HeaderClock
	HeaderNode        = lines.HeaderNode
	HeaderTopic       = lines.HeaderTopic
	HeaderBroker      = lines.HeaderBroker
	HeaderUser        = lines.HeaderUser
)

// Samples are values of devices.
func Samples() Kind { return lines.Samples() }

// Messages are what apps publish on custom MQTT topics.
func Messages() Kind { return lines.Messages() }
