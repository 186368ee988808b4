package streams

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
)

// publishTimeout bounds one publish, its retries included: longer than the election of a stream leader (4 to 9 s).
const publishTimeout = 15 * time.Second

// Publisher writes the desired state of nodes into the hub's stream. It is stateless; any number may run.
type Publisher struct {
	js      jetstream.JetStream
	codec   *codec
	reader  *streamReader
	metrics *Metrics
}

// NewPublisher returns a Publisher over a connection to the hub.
func NewPublisher(nc *nats.Conn, metrics *Metrics) (*Publisher, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("publisher: %w", err)
	}
	codec, err := newCodec()
	if err != nil {
		return nil, err
	}
	return &Publisher{js: js, codec: codec, reader: &streamReader{nc: nc, js: js, stream: DesiredStream}, metrics: metrics}, nil
}

// Publish stores the message as the last of its subject and returns its stream sequence once a majority has it on disk. expectLast is the
// sequence of the message that the writer believes to be the last one of the subject, 0 for none. If it is not, nothing is stored and the
// error is wire.ErrConflict. Repeating a Publish whose answer was lost stores nothing twice: it returns the first one's sequence or
// wire.ErrConflict, and Held then shows the message. m.Time must differ between two publishes that are not repetitions.
func (p *Publisher) Publish(ctx context.Context, m wire.Message, expectLast uint64) (uint64, error) {
	subject := Subject(Desired, m.Node, m.Key)
	msg, err := p.codec.encode(subject, m)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	ack, err := p.publishMessage(ctx, msg,
		// The id distinguishes this attempt from all others: the same version may rightly come back after a tombstone was purged, and the
		// server would drop it for two minutes as a repetition. The library's own retries keep the id.
		jetstream.WithMsgID(subject+"/"+m.UID+"/"+m.Version+"/"+string(m.Op)+"/"+strconv.FormatInt(m.Time.UnixNano(), 36)),
		jetstream.WithExpectLastSequencePerSubject(expectLast),
		jetstream.WithRetryAttempts(publishRetries), jetstream.WithRetryWait(publishRetryWait))
	switch {
	case isWrongLastSequence(err):
		p.metrics.conflicts.Inc()
		return 0, fmt.Errorf("publish %s: %w", subject, wire.ErrConflict)
	case err != nil:
		return 0, fmt.Errorf("publish %s: %w", subject, err)
	}
	p.metrics.published.WithLabelValues(string(Desired), string(m.Op)).Inc()
	return ack.Sequence, nil
}

// While a stream has no leader the server answers "no responders"; an election takes seconds, so the library's two tries within half a
// second are too few.
const (
	publishRetries   = 40
	publishRetryWait = 250 * time.Millisecond
)

// publishAttemptTimeout bounds the wait for the answer to one attempt. An attempt that was lost with its server is never answered. If it
// was stored after all, the server recognises the repetition by its id.
const publishAttemptTimeout = 4 * time.Second

// publishMessage sends a message until it is answered or ctx ends.
func (p *Publisher) publishMessage(ctx context.Context, msg *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	for {
		tctx, cancel := context.WithTimeout(ctx, publishAttemptTimeout)
		ack, err := p.js.PublishMsg(tctx, msg, opts...)
		cancel()
		if (err == nil || !errors.Is(err, context.DeadlineExceeded) && !isInFlight(err)) || ctx.Err() != nil {
			return ack, err
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
	stream, err := lookUpStream(ctx, p.reader.js, DesiredStream)
	if err != nil {
		return nil, err
	}
	atLeast := stream.CachedInfo().State.LastSeq
	held := make(map[wire.Key]wire.Message)
	err = p.readPages(ctx, []string{Filter(Desired, node)}, atLeast, held)
	if !errors.Is(err, errTooManySubjects) {
		return held, err
	}
	clear(held)
	subjects, _, err := p.reader.listSubjects(ctx, Filter(Desired, node))
	if err != nil {
		return nil, err
	}
	for some := range slices.Chunk(subjects, maxExactSubjects) {
		if err := p.readPages(ctx, some, atLeast, held); err != nil {
			return nil, err
		}
	}
	return held, nil
}

// readPages reads all matching messages into held.
func (p *Publisher) readPages(ctx context.Context, filters []string, atLeast uint64, held map[wire.Key]wire.Message) error {
	for next := uint64(0); ; {
		page, err := p.reader.readAtLeast(ctx, filters, next, inventoryPageMessages, inventoryPageBytes, atLeast)
		if err != nil {
			return err
		}
		for _, raw := range page.messages {
			m, err := decodeHeader(raw.Subject, raw.Header)
			if m.Key == (wire.Key{}) {
				continue // not the subject of an object: nothing of Frond's to replace
			}
			if err != nil {
				m = wire.Message{Node: m.Node, Key: m.Key}
			}
			m.Sequence = raw.Sequence
			held[m.Key] = m
		}
		if !page.more {
			return nil
		}
		// The next page must come from a server that has seen at least as much: an object that moved to a higher sequence is otherwise
		// missing in both.
		next, atLeast = page.lastSequence+1, max(atLeast, page.upTo)
	}
}

// lookUpStream returns a stream as its leader knows it. A request sent while there is no leader is never answered, even after the
// election, so the request is repeated.
func lookUpStream(ctx context.Context, js jetstream.JetStream, name string) (stream jetstream.Stream, err error) {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	err = retryUnanswered(ctx, func(ctx context.Context) error {
		stream, err = js.Stream(ctx, name)
		return err
	})
	return stream, err
}

// Purge removes the messages of one object up to a sequence; a newer one stays.
func (p *Publisher) Purge(ctx context.Context, node string, key wire.Key, upTo uint64) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	stream, err := p.js.Stream(ctx, DesiredStream)
	if err != nil {
		return fmt.Errorf("purge: %w", err)
	}
	if err := stream.Purge(ctx, jetstream.WithPurgeSubject(Subject(Desired, node, key)), jetstream.WithPurgeSequence(upTo+1)); err != nil {
		return fmt.Errorf("purge %s of %s: %w", key.Human(), node, err)
	}
	return nil
}
