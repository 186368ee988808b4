// Package rulefeed gives a rule the messages of apps that it asks for, from the hub's stream MESSAGES-0: each at least once, one after the other and in the
// order of the stream, until it was handled.
//
// Each rule has a durable consumer of its own, so that no rule waits for another. It gives out one message at a time, to one cloudcore however many read it:
// while a cloudcore handles a message, the hub confirms that it still has it; when it is killed, another one gets the message after ackWait. One that is cut
// from the hub stops before. What nobody has handled is lost when the
// stream drops it, after a day or beyond its size. What can never be handled becomes a dead letter.
package rulefeed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/internal/envelope"
	"github.com/frond-edge/frond/streams/internal/flow"
	"github.com/frond-edge/frond/streams/internal/lines"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

const (
	// ackWait is how long the message of a dead cloudcore waits for another one.
	ackWait = 30 * time.Second
	// inactiveThreshold is twice the age of the stream's messages: a consumer that nobody has read for so long has nothing that another one would repeat.
	inactiveThreshold = 48 * time.Hour
	// ackTimeout bounds the ack of a message; without an answer the message comes again.
	ackTimeout = 5 * time.Second
	// requestTimeout bounds a request about a consumer.
	requestTimeout = 5 * time.Second
	// planeRule is the plane of dead letters.
	planeRule = subject.Plane("rule")
)

// Source says which messages a rule gets.
type Source struct {
	// UID is the rule's. It is in the name of the consumer, which no gateway can guess. Rule is namespace/name, for the consumer's description and for dead
	// letters.
	UID, Rule string
	// Node and Topic, an MQTT filter, choose the messages.
	Node, Topic string
	// Since is when the rule was created: it gets no message that the hub stored before. It never changes for a UID; the hub refuses another one.
	Since time.Time
}

// Message is what an app published.
type Message struct {
	// ID is the same for each attempt of a message, and for no other message.
	ID string
	// Node and Topic are where it was published. GatewayTime is the time of the gateway's clock, in RFC 3339; "" where the message has none.
	Node, Topic, GatewayTime string
	Payload                  []byte
	// Stored is when the hub stored it.
	Stored time.Time
}

// Handle handles a message. An error that wraps wire.ErrPermanent makes it a dead letter; with any other the message comes again. A handler that ends
// because of its ctx returns an error.
type Handle func(ctx context.Context, m Message) error

// Reader is what the feed of a rule calls, one function at a time.
type Reader struct {
	Handle Handle
	// Made is called with nil when the hub has the consumer of the rule, and with the hub's error when it refuses to make it: then no message comes. It is
	// not called while the hub does not answer.
	Made func(err error)
	// GaveUp is called when a message has become a dead letter.
	GaveUp func()
}

// Feeds are the feeds of all rules of a cloudcore.
type Feeds struct {
	nc          *nats.Conn
	js          jetstream.JetStream
	hold        holdTimes
	deadLetters *envelope.DeadLetterStore
	log         *zap.Logger
}

// New returns the feeds over a connection to the hub.
func New(nc *nats.Conn, common *metrics.Metrics, log *zap.Logger) (*Feeds, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	return &Feeds{
		nc: nc, js: js, hold: defaultHoldTimes(), log: log,
		deadLetters: &envelope.DeadLetterStore{Js: js, Sender: call.CloudSender, Metrics: common, Log: log},
	}, nil
}

func consumerName(uid string) string { return "rule-" + wire.Escape(uid) }

func consumerConfig(s Source) jetstream.ConsumerConfig {
	since := s.Since
	return jetstream.ConsumerConfig{
		Durable: consumerName(s.UID), Description: "The rule " + s.Rule, FilterSubjects: subject.MessageFilters(s.Node, s.Topic),
		DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxAckPending: 1, MaxDeliver: -1, InactiveThreshold: inactiveThreshold,
	}
}

// Run hands the messages of a rule to r, one after the other, until ctx ends. Errors of the hub are logged, and it tries again.
func (f *Feeds) Run(ctx context.Context, s Source, r Reader) {
	retry := flow.NewRetryBackoff()
	for ctx.Err() == nil {
		began := time.Now()
		err := f.runSession(ctx, s, r)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > flow.StableSession {
			retry = flow.NewRetryBackoff()
		}
		delay := retry.Step()
		f.log.Warn("reading messages of a rule interrupted", zap.String("rule", s.Rule), zap.Duration("retry", delay), zap.Error(err))
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	}
}

// runSession reads until an error.
func (f *Feeds) runSession(ctx context.Context, s Source, r Reader) error {
	var consumer jetstream.Consumer
	err := topology.RetryUnanswered(ctx, func(ctx context.Context) (err error) {
		consumer, err = f.js.CreateOrUpdateConsumer(ctx, subject.MessagesStream, consumerConfig(s))
		return err
	})
	if err != nil {
		err = fmt.Errorf("consumer of rule %s: %w", s.Rule, err)
		if _, refused := errors.AsType[jetstream.JetStreamError](err); refused && ctx.Err() == nil {
			r.Made(err)
		}
		return err
	}
	r.Made(nil)
	for {
		// One pull for each message: a message that waits in this process would be kept from the next owner of the rule.
		batch, err := consumer.Fetch(1, jetstream.FetchContext(ctx), jetstream.FetchHeartbeat(topology.PullHeartbeat))
		if err != nil {
			return fmt.Errorf("next message of rule %s: %w", s.Rule, err)
		}
		for msg := range batch.Messages() {
			if err := f.handleMessage(ctx, s, msg, r); err != nil {
				return err
			}
		}
		if err := batch.Error(); err != nil {
			return fmt.Errorf("next message of rule %s: %w", s.Rule, err)
		}
	}
}

// handleMessage handles one message and tells the hub. An error ends the session.
func (f *Feeds) handleMessage(ctx context.Context, s Source, msg jetstream.Msg, r Reader) error {
	if !fits(msg.Subject(), subject.MessageFilters(s.Node, s.Topic)) { // it was in flight when the rule changed
		return f.ack(ctx, s, msg)
	}
	m, err := decode(msg)
	if err == nil {
		err = f.hold.handle(ctx, f.confirm(msg), m, r.Handle)
	}
	if errors.Is(err, wire.ErrPermanent) {
		if err = f.deadLetters.PutOf(ctx, s.Rule+" "+m.ID, planeRule, msg.Subject(), deadHeader(s, msg), msg.Data(), err); err == nil {
			r.GaveUp()
		}
	}
	if errors.Is(err, errNotConfirmed) {
		return fmt.Errorf("message %s of rule %s: %w", m.ID, s.Rule, err) // a nak that arrives late would be about another cloudcore's attempt
	}
	if err != nil {
		// Told again, the next attempt need not wait for ackWait; a lost nak costs that.
		if nakErr := msg.Nak(); nakErr != nil {
			err = errors.Join(err, nakErr)
		}
		return fmt.Errorf("message %s of rule %s: %w", m.ID, s.Rule, err)
	}
	return f.ack(ctx, s, msg)
}

// fits reports whether a subject matches one of the filters.
func fits(subj string, filters []string) bool {
	return slices.ContainsFunc(filters, func(filter string) bool {
		got, want := strings.Split(subj, "."), strings.Split(filter, ".")
		for i, token := range want {
			switch {
			case token == ">":
				return len(got) > i
			case i >= len(got) || token != "*" && token != got[i]:
				return false
			}
		}
		return len(got) == len(want)
	})
}

// ack tells the hub that a message was handled.
func (*Feeds) ack(ctx context.Context, s Source, msg jetstream.Msg) error {
	// An ack must not be lost because the rule was changed meanwhile.
	ackCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ackTimeout)
	defer cancel()
	if err := msg.DoubleAck(ackCtx); err != nil {
		return fmt.Errorf("ack a message of rule %s: %w", s.Rule, err)
	}
	return nil
}

// deadHeader is the header of a dead letter: the message's, and which rule gave it up.
func deadHeader(s Source, msg jetstream.Msg) nats.Header {
	header := nats.Header{"Frond-Rule": {s.Rule}}
	maps.Copy(header, msg.Headers())
	return header
}

// confirm returns a request to the hub that keeps it from giving a message to another cloudcore for ackWait.
func (f *Feeds) confirm(msg jetstream.Msg) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		_, err := f.nc.RequestWithContext(ctx, msg.Reply(), []byte(ackProgress))
		return err
	}
}

// decode reads a message. Whatever is in the stream has an id, also what somebody else has published there.
func decode(msg jetstream.Msg) (Message, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return Message{}, fmt.Errorf("%w: message without a position: %w", wire.ErrPermanent, err)
	}
	h := msg.Headers()
	m := Message{
		Node: h.Get(lines.HeaderNode), Topic: h.Get(lines.HeaderTopic), Payload: msg.Data(), GatewayTime: h.Get(lines.HeaderGatewayTime), Stored: meta.Timestamp,
		ID: h.Get(lines.HeaderNode) + "/" + h.Get(lines.HeaderRun) + "/" + h.Get(lines.HeaderNumber),
	}
	if h.Get(lines.HeaderRun) == "" || h.Get(lines.HeaderNumber) == "" {
		m.ID = subject.MessagesStream + "/" + strconv.FormatUint(meta.Sequence.Stream, 10)
	}
	return m, nil
}

// Waiting returns the number of messages that the consumer of a rule has not acked; 0 if there is no consumer.
func (f *Feeds) Waiting(ctx context.Context, uid string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	consumer, err := f.js.Consumer(ctx, subject.MessagesStream, consumerName(uid)) // asks for its state
	switch {
	case topology.IsNotFound(err):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("consumer of a rule: %w", err)
	}
	info := consumer.CachedInfo()
	return int64(info.NumPending) + int64(info.NumAckPending), nil
}

// Remove deletes the consumer of a rule. Without it a later rule of that name would not be affected: it has another UID.
func (f *Feeds) Remove(ctx context.Context, uid string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := f.js.DeleteConsumer(ctx, subject.MessagesStream, consumerName(uid)); err != nil && !topology.IsNotFound(err) {
		return fmt.Errorf("delete the consumer of a rule: %w", err)
	}
	return nil
}
