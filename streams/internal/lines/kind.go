// Package lines has what nodes and cloudcores exchange as numbered lines: samples of devices and messages of apps, as one line of JSON each, many of
// them compressed, and what each kind of them is in the hub. It has no I/O.
package lines

import (
	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/internal/failpoint"
	"github.com/frond-edge/frond/streams/subject"
)

// Kind is one kind of what nodes send: each has its own stream at the node, its own calls, and its own stream in the hub, so that no kind waits
// for another.
type Kind struct {
	// Noun names what is sent in logs, prefix its metrics.
	Noun, Prefix string
	// Received names the metric of what a cloudcore gets.
	Received                                 string
	LeafStream, LeafSubject, HubStream, Verb string
	Plane                                    subject.Plane
	// The crash points: stored on the node's disk, sent to the hub, all but the last message of a batch sent to the stream.
	ReachStored, ReachSent, ReachCommit func()
	// All matches all that a node has in the hub.
	All func(node string) string
	// Encode returns the message of a line in the hub, without the headers that each kind has.
	Encode func(node string, l *Line) *nats.Msg
	// Check refuses, wrapped in wire.ErrPermanent, a line that no node of this version sends.
	Check func(l *Line) error
	// Group is whose lines HeaderPrevious chains; "" is nobody's.
	Group func(l *Line) string
}

// Samples are values of devices.
func Samples() Kind {
	return Kind{
		Noun: "samples", Prefix: "telemetry", Received: "telemetry_samples_total", LeafStream: subject.LeafTelemetryStream, LeafSubject: subject.LeafTelemetrySubject,
		HubStream: subject.TelemetryStream, Verb: subject.VerbTelemetry, Plane: "telemetry", All: subject.NodeSamples,
		ReachStored: func() { failpoint.At("telemetry.stored") },
		ReachSent:   func() { failpoint.At("telemetry.sent") },
		ReachCommit: func() { failpoint.At("telemetry.commit") },
		Encode: func(node string, l *Line) *nats.Msg {
			return &nats.Msg{Subject: subject.SampleSubject(node, l.Namespace, l.Device, l.Property), Header: nats.Header{}, Data: []byte(l.Value)}
		},
		Check: func(l *Line) error {
			s := l.sample()
			return s.Validate()
		},
		Group: func(l *Line) string { return l.Namespace + "/" + l.Device },
	}
}

// Messages are what apps publish on custom MQTT topics.
func Messages() Kind {
	return Kind{
		Noun: "messages", Prefix: "messages", Received: "messages_received_total", LeafStream: subject.LeafMessagesStream, LeafSubject: subject.LeafMessagesSubject,
		HubStream: subject.MessagesStream, Verb: subject.VerbMessages, Plane: "messages", All: subject.NodeMessages,
		ReachStored: func() { failpoint.At("messages.stored") },
		ReachSent:   func() { failpoint.At("messages.sent") },
		ReachCommit: func() { failpoint.At("messages.commit") },
		Encode: func(node string, l *Line) *nats.Msg {
			h := nats.Header{HeaderNode: {node}, HeaderTopic: {l.Topic}, HeaderBroker: {l.Broker}}
			if l.User != "" {
				h[HeaderUser] = []string{l.User}
			}
			return &nats.Msg{Subject: subject.MessageSubject(node, l.Topic), Header: h, Data: l.Payload}
		},
		Check: func(l *Line) error {
			m := l.message()
			return m.Validate()
		},
		Group: func(*Line) string { return "" },
	}
}
