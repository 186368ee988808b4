package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

// Source is the outbox of one plane, as a pump reads it. A gateway's is a stream of its leaf.
type Source interface {
	// Open begins to read at the oldest report. Reports that an earlier reader read and did not ack are read again.
	Open(ctx context.Context) (Reader, error)
	// Depth returns how many reports wait and for how long the oldest has waited.
	Depth(ctx context.Context) (messages uint64, oldest time.Duration, err error)
}

// Reader reads the reports of a Source, oldest first.
type Reader interface {
	// Next waits for the next report.
	Next(ctx context.Context) (Report, error)
	// Drain ends the reading, and returns the reports that were read ahead.
	Drain() []Report
}

// Report is a waiting report: the part of jetstream.Msg that a pump needs.
type Report interface {
	Metadata() (*jetstream.MsgMetadata, error)
	Subject() string
	Headers() nats.Header
	Data() []byte
	// Ack removes the report unless it was replaced, Nak has it read again, InProgress keeps it with its reader.
	Ack() error
	Nak() error
	InProgress() error
}

// leafSource is a stream of the leaf.
type leafSource struct {
	js     jetstream.JetStream
	stream string
}

// streamOf returns the leaf's stream of a plane.
func streamOf(plane subject.Plane) string {
	if plane == subject.Event {
		return subject.OutboxEventsStream
	}
	return subject.OutboxStream
}

// Open implements Source.
func (l leafSource) Open(ctx context.Context) (Reader, error) {
	consumer, err := l.js.Consumer(ctx, l.stream, topology.PumpConsumer)
	if err != nil {
		return nil, err
	}
	incoming, err := consumer.Messages(jetstream.PullMaxMessages(topology.PumpWindow))
	if err != nil {
		return nil, err
	}
	return leafReader{incoming}, nil
}

// Depth implements Source.
func (l leafSource) Depth(ctx context.Context) (messages uint64, oldest time.Duration, err error) {
	stream, err := l.js.Stream(ctx, l.stream)
	if err != nil {
		return 0, 0, fmt.Errorf("outbox: %w", err)
	}
	state := stream.CachedInfo().State
	if state.Msgs > 0 {
		oldest = max(0, time.Since(state.FirstTime))
	}
	return state.Msgs, oldest, nil
}

// leafReader reads a stream of the leaf.
type leafReader struct{ incoming jetstream.MessagesContext }

// Next implements Reader.
func (r leafReader) Next(ctx context.Context) (Report, error) {
	msg, err := r.incoming.Next(jetstream.NextContext(ctx))
	if err != nil {
		return nil, err // not a Report that holds a nil message
	}
	return msg, nil
}

// Drain implements Reader.
func (r leafReader) Drain() (ahead []Report) {
	r.incoming.Drain()
	for {
		msg, err := r.incoming.Next(jetstream.NextMaxWait(drainTimeout))
		if err != nil {
			return ahead // the channel is drained
		}
		ahead = append(ahead, msg)
	}
}
