// Package publish is the cloud's side of the delivery of desired state: Publisher stores one message per node and object in the hub,
// Attacher answers a node that attaches, and Inspector counts what a node lacks.
package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
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

// Publisher writes the desired state of nodes into the hub's stream. It is stateless; any number may run.
type Publisher struct {
	js      jetstream.JetStream
	codec   *envelope.Codec
	streams desiredStreams
	metrics *metrics.Metrics
	answers answerTimer
}

// desiredStreams reads the streams of desired state.
type desiredStreams struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	layout subject.Layout
}

// reader returns the reader of the stream that holds the desired state of a node.
func (s desiredStreams) reader(node string) *read.StreamReader {
	return &read.StreamReader{Nc: s.nc, Js: s.js, Stream: s.layout.DesiredStream(node)}
}

// NewPublisher returns a Publisher over a connection to a hub with the given layout.
func NewPublisher(nc *nats.Conn, layout subject.Layout, metrics *metrics.Metrics) (*Publisher, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("publisher: %w", err)
	}
	codec, err := envelope.NewCodec()
	if err != nil {
		return nil, err
	}
	return &Publisher{js: js, codec: codec, streams: desiredStreams{nc: nc, js: js, layout: layout}, metrics: metrics}, nil
}

// Publish stores the message as the last of its subject and returns its stream sequence once a majority has it on disk. expectLast is the
// sequence of the message that the writer believes to be the last one of the subject, 0 for none. If it is not, nothing is stored and the
// error is wire.ErrConflict. Repeating a Publish whose answer was lost stores nothing twice: it returns the first one's sequence or
// wire.ErrConflict, and Held then shows the message. m.Time must differ between two publishes that are not repetitions.
func (p *Publisher) Publish(ctx context.Context, m wire.Message, expectLast uint64) (uint64, error) {
	subj := subject.Of(subject.Desired, m.Node, m.Key)
	msg, err := p.codec.Encode(p.streams.layout.DesiredSubject(m.Node, m.Key), m)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, topology.PublishTimeout)
	defer cancel()
	ack, err := p.publishMessage(ctx, msg,
		// The id distinguishes this attempt from all others: the same version may rightly come back after a tombstone was purged, and the
		// server would drop it for two minutes as a repetition. The library's own retries keep the id.
		jetstream.WithMsgID(subj+"/"+m.UID+"/"+m.Version+"/"+string(m.Op)+"/"+strconv.FormatInt(m.Time.UnixNano(), 36)),
		jetstream.WithExpectLastSequencePerSubject(expectLast),
		jetstream.WithRetryAttempts(publishRetries), jetstream.WithRetryWait(publishRetryWait))
	switch {
	case isWrongLastSequence(err):
		p.metrics.Conflicts.Inc()
		return 0, fmt.Errorf("publish %s: %w", subj, wire.ErrConflict)
	case err != nil:
		return 0, fmt.Errorf("publish %s: %w", subj, err)
	}
	p.metrics.Published.WithLabelValues(string(subject.Desired), string(m.Op)).Inc()
	return ack.Sequence, nil
}

// While a stream has no leader the server answers "no responders"; an election takes seconds, so the library's two tries within half a
// second are too few.
const (
	publishRetries   = 40
	publishRetryWait = 250 * time.Millisecond
)

// publishMessage sends a message until it is answered or ctx ends. An attempt whose server stopped, or stopped leading the stream, is never
// answered; if it was stored after all, the server recognises the repetition by its id.
func (p *Publisher) publishMessage(ctx context.Context, msg *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	began := time.Now()
	for attempt := 0; ; attempt++ {
		tctx, cancel := context.WithTimeout(ctx, p.answers.timeout(attempt))
		ack, err := p.js.PublishMsg(tctx, msg, opts...)
		cancel()
		if err == nil {
			p.answers.observe(time.Since(began))
		}
		unanswered := errors.Is(err, context.DeadlineExceeded)
		if (err == nil || !unanswered && !isInFlight(err)) || ctx.Err() != nil {
			return ack, err
		}
		if unanswered {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(publishRetryWait):
		}
	}
}

// isInFlight reports whether the server is still storing an earlier attempt of the message.
func isInFlight(err error) bool {
	const duplicateInProcess = 10158 // of nats-server, which nats.go does not name
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == duplicateInProcess
}

// isWrongLastSequence reports a lost race. The clustered server answers with its own code while another publish of the subject is still in
// flight.
func isWrongLastSequence(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// Held returns the messages that the stream holds for a node: sequence, operation, UID, version and digest of each object's last message,
// without the object. A message that cannot be decoded appears with its sequence and no operation, so that the writer replaces it. The
// result contains every message that the stream's leader had when Held was called, or a newer one.
func (p *Publisher) Held(ctx context.Context, node string) (map[wire.Key]wire.Message, error) {
	held, err := p.readInventory(ctx, node)
	if err != nil {
		return nil, fmt.Errorf("read what the stream holds for %s: %w", node, err)
	}
	return held, nil
}

func (p *Publisher) readInventory(ctx context.Context, node string) (map[wire.Key]wire.Message, error) {
	reader := p.streams.reader(node)
	stream, err := lookUpStream(ctx, p.js, reader.Stream)
	if err != nil {
		return nil, err
	}
	atLeast := stream.CachedInfo().State.LastSeq
	held := make(map[wire.Key]wire.Message)
	err = readPages(ctx, reader, []string{subject.Filter(subject.Desired, node)}, atLeast, held)
	if !errors.Is(err, read.ErrTooManySubjects) {
		return held, err
	}
	clear(held)
	subjects, _, err := reader.ListSubjects(ctx, subject.Filter(subject.Desired, node))
	if err != nil {
		return nil, err
	}
	for some := range slices.Chunk(subjects, read.MaxExactSubjects) {
		if err := readPages(ctx, reader, some, atLeast, held); err != nil {
			return nil, err
		}
	}
	return held, nil
}

// readPages reads all matching messages into held.
func readPages(ctx context.Context, reader *read.StreamReader, filters []string, atLeast uint64, held map[wire.Key]wire.Message) error {
	for next := uint64(0); ; {
		page, err := reader.ReadAtLeast(ctx, filters, next, read.InventoryPageMessages, read.InventoryPageBytes, atLeast)
		if err != nil {
			return err
		}
		for _, raw := range page.Messages {
			m, err := envelope.DecodeHeader(raw.Subject, raw.Header)
			if m.Key == (wire.Key{}) {
				continue // not the subject of an object: nothing of Frond's to replace
			}
			if err != nil {
				m = wire.Message{Node: m.Node, Key: m.Key}
			}
			m.Sequence = raw.Sequence
			held[m.Key] = m
		}
		if !page.More {
			return nil
		}
		// The next page must come from a server that has seen at least as much: an object that moved to a higher sequence is otherwise
		// missing in both.
		next, atLeast = page.LastSequence+1, max(atLeast, page.UpTo)
	}
}

// lookUpStream returns a stream as its leader knows it. A request sent while there is no leader is never answered, even after the
// election, so the request is repeated.
func lookUpStream(ctx context.Context, js jetstream.JetStream, name string) (stream jetstream.Stream, err error) {
	ctx, cancel := context.WithTimeout(ctx, topology.PublishTimeout)
	defer cancel()
	err = topology.RetryUnanswered(ctx, func(ctx context.Context) error {
		stream, err = js.Stream(ctx, name)
		return err
	})
	return stream, err
}

// Purge removes the messages of one object up to a sequence; a newer one stays.
func (p *Publisher) Purge(ctx context.Context, node string, key wire.Key, upTo uint64) error {
	ctx, cancel := context.WithTimeout(ctx, topology.PublishTimeout)
	defer cancel()
	stream, err := p.js.Stream(ctx, p.streams.layout.DesiredStream(node))
	if err != nil {
		return fmt.Errorf("purge: %w", err)
	}
	if err := stream.Purge(ctx, jetstream.WithPurgeSubject(subject.Of(subject.Desired, node, key)), jetstream.WithPurgeSequence(upTo+1)); err != nil {
		return fmt.Errorf("purge %s of %s: %w", key.Human(), node, err)
	}
	return nil
}
