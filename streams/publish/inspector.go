package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/internal/envelope"
	"github.com/frond-edge/frond/streams/internal/read"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

// Inspector reads the delivery state of nodes. It changes nothing in the hub. Its reads may lag behind the latest writes by one heartbeat
// of a stream's replicas.
type Inspector struct {
	js     jetstream.JetStream
	reader *read.StreamReader
	// publisher is used only to read.
	publisher *Publisher
}

// NewInspector returns an Inspector over a connection to the hub.
func NewInspector(nc *nats.Conn) (*Inspector, error) {
	publisher, err := NewPublisher(nc, metrics.New(nil))
	if err != nil {
		return nil, fmt.Errorf("viewer: %w", err)
	}
	return &Inspector{js: publisher.js, reader: publisher.reader, publisher: publisher}, nil
}

// Epoch returns the current life of the stream of desired state.
func (v *Inspector) Epoch(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, read.DirectGetTimeout)
	defer cancel()
	stream, err := v.js.Stream(ctx, subject.DesiredStream)
	if err != nil {
		return "", fmt.Errorf("read stream %s: %w", subject.DesiredStream, err)
	}
	return topology.StreamEpoch(stream.CachedInfo()), nil
}

// Consumer returns the state of a node's consumer, nil if it has none.
func (v *Inspector) Consumer(ctx context.Context, node string) (*jetstream.ConsumerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, read.DirectGetTimeout)
	defer cancel()
	consumer, err := v.js.Consumer(ctx, subject.DesiredStream, wire.Escape(node))
	if topology.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the consumer of %s: %w", node, err)
	}
	return consumer.CachedInfo(), nil
}

// Held returns the messages that the stream holds for a node, as Publisher.Held does, the snapshot marker included.
func (v *Inspector) Held(ctx context.Context, node string) (map[wire.Key]wire.Message, error) {
	return v.publisher.Held(ctx, node)
}

// MarkerSequence returns the sequence of a node's snapshot marker, 0 if there is none.
func (v *Inspector) MarkerSequence(ctx context.Context, node string) (uint64, error) {
	tally, err := v.countMessages(ctx, subject.Of(subject.Desired, node, wire.SnapshotMarker()), 1)
	return tally.first, err
}

// Count returns how many messages the stream holds for a node after a sequence, and when the cloud saw the first of them.
func (v *Inspector) Count(ctx context.Context, node string, after uint64) (n int, oldest time.Time, err error) {
	tally, err := v.countMessages(ctx, subject.Filter(subject.Desired, node), after+1)
	return tally.count, tally.oldest, err
}

// messageCount counts the messages from a sequence on.
type messageCount struct {
	count  int
	first  uint64
	oldest time.Time
}

// countMessages requests one message and the number of further ones.
func (v *Inspector) countMessages(ctx context.Context, filter string, start uint64) (messageCount, error) {
	ctx, cancel := context.WithTimeout(ctx, read.DirectGetTimeout)
	defer cancel()
	t, err := v.countDirect(ctx, filter, start)
	if errors.Is(err, read.ErrTooManySubjects) {
		t, err = v.countByConsumer(ctx, filter, start)
	}
	if err != nil {
		return messageCount{}, fmt.Errorf("count %s of stream %s: %w", filter, subject.DesiredStream, err)
	}
	return t, nil
}

func (v *Inspector) countDirect(ctx context.Context, filter string, start uint64) (messageCount, error) {
	body, err := json.Marshal(read.DirectGetRequest{MultiLast: []string{filter}, Seq: max(start, 1), Batch: 1})
	if err != nil {
		return messageCount{}, err
	}
	nc := v.reader.Nc
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return messageCount{}, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	if err := nc.PublishRequest("$JS.API.DIRECT.GET."+subject.DesiredStream, inbox, body); err != nil {
		return messageCount{}, err
	}
	var t messageCount
	for {
		msg, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return messageCount{}, err
		}
		var p read.SnapshotPage
		switch done, err := p.AddMessage(msg); {
		case err != nil:
			return messageCount{}, err
		case done && msg.Header.Get("Status") == "204":
			more, err := read.ParseHeaderNumber(msg.Header, "Nats-Num-Pending")
			t.count += int(more)
			return t, err
		case done:
			return t, nil // nothing matches
		default:
			t = messageCount{count: 1, first: p.LastSequence, oldest: parseSentTime(msg.Header)}
		}
	}
}

// countByConsumer counts with a consumer that exists for this request only.
func (v *Inspector) countByConsumer(ctx context.Context, filter string, start uint64) (messageCount, error) {
	consumer, err := v.js.OrderedConsumer(ctx, subject.DesiredStream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{filter}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(start, 1),
	})
	if err != nil {
		return messageCount{}, err
	}
	t := messageCount{count: int(consumer.CachedInfo().NumPending)}
	if t.count == 0 {
		return t, nil
	}
	incoming, err := consumer.Messages(jetstream.PullMaxMessages(1))
	if err != nil {
		return messageCount{}, err
	}
	defer incoming.Stop()
	msg, err := incoming.Next(jetstream.NextContext(ctx))
	if err != nil {
		return messageCount{}, err
	}
	meta, err := msg.Metadata()
	if err != nil {
		return messageCount{}, err
	}
	t.first, t.oldest = meta.Sequence.Stream, parseSentTime(msg.Headers())
	return t, nil
}

// parseSentTime returns when the cloud saw the content of a message; zero if the message does not say so.
func parseSentTime(header nats.Header) time.Time {
	at, err := time.Parse(time.RFC3339Nano, header.Get(envelope.HeaderTime))
	if err != nil {
		return time.Time{}
	}
	return at
}
