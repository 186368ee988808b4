package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

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
	js      jetstream.JetStream
	streams desiredStreams
	// publisher is used only to read.
	publisher *Publisher
}

// NewInspector returns an Inspector over a connection to a hub with the given layout.
func NewInspector(nc *nats.Conn, layout subject.Layout) (*Inspector, error) {
	publisher, err := NewPublisher(nc, layout, metrics.New(nil))
	if err != nil {
		return nil, fmt.Errorf("viewer: %w", err)
	}
	return &Inspector{js: publisher.js, streams: publisher.streams, publisher: publisher}, nil
}

// Epochs returns the current life of the stream of each node's desired state; "" for the nodes of a stream that does not answer. If none
// answers it returns an error.
func (v *Inspector) Epochs(ctx context.Context) (of func(node string) string, err error) {
	ctx, cancel := context.WithTimeout(ctx, read.DirectGetTimeout)
	defer cancel()
	names := v.streams.layout.DesiredStreams()
	epochs, faults := make([]string, len(names)), make([]error, len(names))
	var g errgroup.Group
	for i, name := range names {
		g.Go(func() error {
			stream, err := v.js.Stream(ctx, name)
			if err != nil {
				faults[i] = fmt.Errorf("read stream %s: %w", name, err)
				return nil
			}
			epochs[i] = topology.StreamEpoch(stream.CachedInfo())
			return nil
		})
	}
	_ = g.Wait() // each stream has its own fault
	if !slices.Contains(faults, nil) {
		return nil, errors.Join(faults...)
	}
	return func(node string) string { return epochs[v.streams.layout.Partition(node)] }, nil
}

// Consumer returns the state of a node's consumer, nil if it has none.
func (v *Inspector) Consumer(ctx context.Context, node string) (*jetstream.ConsumerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, read.DirectGetTimeout)
	defer cancel()
	consumer, err := v.js.Consumer(ctx, v.streams.layout.DesiredStream(node), wire.Escape(node))
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
	tally, err := v.countMessages(ctx, node, subject.Of(subject.Desired, node, wire.SnapshotMarker()), 1)
	return tally.first, err
}

// Count returns how many messages the stream holds for a node after a sequence, and when the cloud saw the first of them.
func (v *Inspector) Count(ctx context.Context, node string, after uint64) (n int, oldest time.Time, err error) {
	tally, err := v.countMessages(ctx, node, subject.Filter(subject.Desired, node), after+1)
	return tally.count, tally.oldest, err
}

// messageCount counts the messages from a sequence on.
type messageCount struct {
	count  int
	first  uint64
	oldest time.Time
}

// countMessages requests one message and the number of further ones.
func (v *Inspector) countMessages(ctx context.Context, node, filter string, start uint64) (messageCount, error) {
	ctx, cancel := context.WithTimeout(ctx, read.DirectGetTimeout)
	defer cancel()
	stream := v.streams.layout.DesiredStream(node)
	t, err := v.countDirect(ctx, stream, filter, start)
	if errors.Is(err, read.ErrTooManySubjects) {
		t, err = v.countByConsumer(ctx, stream, filter, start)
	}
	if err != nil {
		return messageCount{}, fmt.Errorf("count %s of stream %s: %w", filter, stream, err)
	}
	return t, nil
}

func (v *Inspector) countDirect(ctx context.Context, stream, filter string, start uint64) (messageCount, error) {
	body, err := json.Marshal(read.DirectGetRequest{MultiLast: []string{filter}, Seq: max(start, 1), Batch: 1})
	if err != nil {
		return messageCount{}, err
	}
	nc := v.streams.nc
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return messageCount{}, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	if err := nc.PublishRequest("$JS.API.DIRECT.GET."+stream, inbox, body); err != nil {
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
func (v *Inspector) countByConsumer(ctx context.Context, stream, filter string, start uint64) (messageCount, error) {
	consumer, err := v.js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{
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
