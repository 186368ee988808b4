package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
)

// Viewer reads how far nodes are. It changes nothing in the hub. What it reads may be older than what was just stored by
// the heartbeat of a stream's replicas.
type Viewer struct {
	js     jetstream.JetStream
	reader *reader
	// publisher only reads here.
	publisher *Publisher
}

// NewViewer makes a Viewer over a connection to the hub.
func NewViewer(nc *nats.Conn) (*Viewer, error) {
	publisher, err := NewPublisher(nc, NewMetrics(nil))
	if err != nil {
		return nil, fmt.Errorf("viewer: %w", err)
	}
	return &Viewer{js: publisher.js, reader: publisher.reader, publisher: publisher}, nil
}

// Epoch returns the present life of the stream of desired state.
func (v *Viewer) Epoch(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, directTimeout)
	defer cancel()
	stream, err := v.js.Stream(ctx, DesiredStream)
	if err != nil {
		return "", fmt.Errorf("look at stream %s: %w", DesiredStream, err)
	}
	return streamEpoch(stream.CachedInfo()), nil
}

// Consumer returns the state of a node's consumer, nil if it has none.
func (v *Viewer) Consumer(ctx context.Context, node string) (*jetstream.ConsumerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, directTimeout)
	defer cancel()
	consumer, err := v.js.Consumer(ctx, DesiredStream, wire.Escape(node))
	if errNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at the consumer of %s: %w", node, err)
	}
	return consumer.CachedInfo(), nil
}

// Held returns what the stream holds for a node, as Publisher.Held does, the snapshot marker included.
func (v *Viewer) Held(ctx context.Context, node string) (map[wire.Key]wire.Message, error) {
	return v.publisher.Held(ctx, node)
}

// Marker returns the sequence of a node's snapshot marker, 0 if there is none.
func (v *Viewer) Marker(ctx context.Context, node string) (uint64, error) {
	tally, err := v.count(ctx, Subject(Desired, node, wire.SnapshotMarker()), 1)
	return tally.first, err
}

// Count tells how many messages the stream holds for a node after a sequence, and when the cloud saw the first of them.
func (v *Viewer) Count(ctx context.Context, node string, after uint64) (n int, oldest time.Time, err error) {
	tally, err := v.count(ctx, Filter(Desired, node), after+1)
	return tally.n, tally.oldest, err
}

// tally is what there is from a sequence on.
type tally struct {
	n      int
	first  uint64
	oldest time.Time
}

// count asks for one message and how many more there are.
func (v *Viewer) count(ctx context.Context, filter string, start uint64) (tally, error) {
	ctx, cancel := context.WithTimeout(ctx, directTimeout)
	defer cancel()
	t, err := v.direct(ctx, filter, start)
	if errors.Is(err, errTooManySubjects) {
		t, err = v.scan(ctx, filter, start)
	}
	if err != nil {
		return tally{}, fmt.Errorf("count %s of stream %s: %w", filter, DesiredStream, err)
	}
	return t, nil
}

func (v *Viewer) direct(ctx context.Context, filter string, start uint64) (tally, error) {
	body, err := json.Marshal(directRequest{MultiLast: []string{filter}, Seq: max(start, 1), Batch: 1})
	if err != nil {
		return tally{}, err
	}
	nc := v.reader.nc
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return tally{}, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	if err := nc.PublishRequest("$JS.API.DIRECT.GET."+DesiredStream, inbox, body); err != nil {
		return tally{}, err
	}
	var t tally
	for {
		msg, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return tally{}, err
		}
		var p page
		switch done, err := p.add(msg); {
		case err != nil:
			return tally{}, err
		case done && msg.Header.Get("Status") == "204":
			more, err := number(msg.Header, "Nats-Num-Pending")
			t.n += int(more)
			return t, err
		case done:
			return t, nil // nothing matches
		default:
			t = tally{n: 1, first: p.last, oldest: sent(msg.Header)}
		}
	}
}

// scan counts by a consumer that lives for this question only.
func (v *Viewer) scan(ctx context.Context, filter string, start uint64) (tally, error) {
	consumer, err := v.js.OrderedConsumer(ctx, DesiredStream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{filter}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(start, 1),
	})
	if err != nil {
		return tally{}, err
	}
	t := tally{n: int(consumer.CachedInfo().NumPending)}
	if t.n == 0 {
		return t, nil
	}
	incoming, err := consumer.Messages(jetstream.PullMaxMessages(1))
	if err != nil {
		return tally{}, err
	}
	defer incoming.Stop()
	msg, err := incoming.Next(jetstream.NextContext(ctx))
	if err != nil {
		return tally{}, err
	}
	meta, err := msg.Metadata()
	if err != nil {
		return tally{}, err
	}
	t.first, t.oldest = meta.Sequence.Stream, sent(msg.Headers())
	return t, nil
}

// sent is when the cloud saw what a message carries; zero if it does not say so.
func sent(header nats.Header) time.Time {
	at, err := time.Parse(time.RFC3339Nano, header.Get(headerTime))
	if err != nil {
		return time.Time{}
	}
	return at
}
