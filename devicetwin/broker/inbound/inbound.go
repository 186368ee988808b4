// Package inbound takes what apps publish to the gateway, on the topics of devices and nodes, from the gateway's own MQTT broker.
//
// nats-server answers a publish of QoS 1 or 2 when its store has answered. For these topics that store is this package: whoever handles a message
// answers it, after which nats-server sends the PUBACK, in the order of the client's packets. A client has at most 1,024 messages without an answer
// (nats-server), and its connection is not read beyond that: one that is faster than the gateway is slowed down, and nothing that was answered is dropped.
// Messages come in the order in which the broker took them. What waits is bounded: beyond it
// the messages of the topic that has most are refused and counted, all that wait of it. So are those for which nats-server does not wait any longer.
package inbound

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/frond-edge/frond/devicetwin/broker/access"
)

const (
	// defaultBytes bounds what waits: some 80,000 small messages, those of 80 clients that are as far ahead as they can be.
	defaultBytes = 32 << 20
	// topicShare is the part of the bytes that one topic may have, so that a device that sends large messages stops no other.
	topicShare = 4
	// overhead is about what a waiting message takes beside its payload, in bytes.
	overhead = 256
	// refusePause is how long a topic's messages are refused after one: those that their client sent behind it must not be handled before it.
	refusePause = time.Second
	// margin is how long before nats-server gives up a message is not handled any more.
	margin = 2 * time.Second
)

// Config says how nats-server writes messages, and what may wait.
type Config struct {
	// StorePrefix is that of the subjects to which nats-server sends a message of QoS 1 or 2 to have it stored.
	StorePrefix string
	// LocalPrefix is before the subject under which a message goes to the broker's own stream, for apps that subscribe with QoS 1.
	LocalPrefix string
	// MaxBytes bounds what waits; 0 is 32 MiB.
	MaxBytes int
	// Timeout is how long nats-server waits for an answer, more than some seconds; then it closes the client's connection, and the client sends again.
	Timeout time.Duration
	// Refused counts the messages that are refused.
	Refused prometheus.Counter
}

// Message is a message of QoS 1 or 2.
type Message struct {
	Topic    string
	Payload  []byte
	Received time.Time
	// Ack answers the broker, once: the message is handled. Without it the client gets no PUBACK, and sends the message again when it has connected anew.
	Ack func() error
	// Expire reports whether the message must not be handled or answered any more: nats-server gives up waiting, and its client sends it again.
	Expire func() bool
}

// Queue has the messages that wait to be handled.
type Queue struct {
	nc  *nats.Conn
	cfg Config
	// ready has a token when there may be messages.
	ready chan struct{}

	mu       sync.Mutex           // guards all below
	waiting  []*item              // in their order
	bytes    int                  // of the messages that are not answered
	shares   map[string]*share    // by topic, of those messages
	refusing map[string]time.Time // until when a topic's messages are refused
}

// item is a message that is not answered.
type item struct {
	Message
	msg   *nats.Msg
	size  int
	share *share
}

// share is what a topic has of the queue.
type share struct {
	count, bytes int
	// waiting is the part of bytes that nobody handles yet.
	waiting int
	// answered is when one of its messages was answered last: nats-server then waits anew.
	answered time.Time
	// lost: what was received up to then comes again.
	lost time.Time
}

// New subscribes over the gateway's own connection to the broker.
func New(nc *nats.Conn, cfg Config) (*Queue, error) {
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = defaultBytes
	}
	q := &Queue{nc: nc, cfg: cfg, ready: make(chan struct{}, 1), shares: map[string]*share{}, refusing: map[string]time.Time{}}
	sub, err := nc.Subscribe(cfg.StorePrefix+access.Events(), q.receive) // one, so that all are in order
	if err != nil {
		return nil, fmt.Errorf("subscribe to messages of devices: %w", err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil { // receive does not wait, and bounds them
		return nil, fmt.Errorf("subscribe to messages of devices: %w", err)
	}
	return q, nil
}

// Next returns the next message, and waits for it.
func (q *Queue) Next(ctx context.Context) (Message, error) {
	for {
		if m, ok := q.takeWaiting(); ok {
			return m, nil
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
			return Message{}, ctx.Err()
		}
	}
}

func (q *Queue) takeWaiting() (Message, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		q.waiting = nil
		return Message{}, false
	}
	it := q.waiting[0]
	q.waiting[0], q.waiting = nil, q.waiting[1:]
	it.share.waiting -= it.size
	return it.Message, true
}

// receive takes a message from nats.go. It does not block.
func (q *Queue) receive(msg *nats.Msg) {
	subject := strings.TrimPrefix(msg.Subject, q.cfg.StorePrefix)
	if !access.IsOfDevices(subject) {
		return // such as a custom topic, which somebody else answers
	}
	it := &item{Message: Message{Topic: access.TopicOf(subject), Payload: msg.Data, Received: time.Now()}, msg: msg, size: len(msg.Data) + overhead}
	it.Ack, it.Expire = func() error { return q.ack(it) }, func() bool { return q.expire(it) }
	refused := q.add(it)
	if !slices.Contains(refused, it) {
		// Apps that subscribe with QoS 1 get it before the answers to it. A closed connection ends the broker, and the client sends the message again.
		_ = q.nc.PublishMsg(&nats.Msg{Subject: q.cfg.LocalPrefix + subject, Header: msg.Header, Data: msg.Data})
	}
	q.refuse(refused, errBusy)
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

func (q *Queue) refuse(items []*item, reason error) {
	for _, it := range items {
		q.cfg.Refused.Inc()
		_ = q.answer(it.msg, reason)
	}
}

// add takes a message, and returns the messages that must be refused for it: those of its topic if that has more than its share, else those of the
// topic that has most. They are refused together, as a client whose message is refused sends all that are not answered again.
func (q *Queue) add(it *item) (refused []*item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if until, is := q.refusing[it.Topic]; is {
		if it.Received.Before(until) {
			return []*item{it}
		}
		delete(q.refusing, it.Topic)
	}
	if it.share = q.shares[it.Topic]; it.share == nil {
		it.share = &share{}
		q.shares[it.Topic] = it.share
	}
	q.waiting = append(q.waiting, it)
	q.bytes += it.size
	it.share.count++
	it.share.bytes += it.size
	it.share.waiting += it.size
	if it.share.bytes > q.cfg.MaxBytes/topicShare {
		return q.evict(it.Topic, it.Received)
	}
	for q.bytes > q.cfg.MaxBytes {
		most := it.Topic
		for topic, s := range q.shares {
			if s.waiting > q.shares[most].waiting {
				most = topic
			}
		}
		evicted := q.evict(most, it.Received)
		refused = append(refused, evicted...)
		if len(evicted) == 0 || most == it.Topic {
			break
		}
	}
	return refused
}

// evict takes what waits of a topic out of the queue.
func (q *Queue) evict(topic string, now time.Time) (evicted []*item) {
	maps.DeleteFunc(q.refusing, func(_ string, until time.Time) bool { return now.After(until) })
	q.refusing[topic] = now.Add(refusePause)
	q.waiting = slices.DeleteFunc(q.waiting, func(it *item) bool {
		if it.Topic != topic {
			return false
		}
		evicted = append(evicted, it)
		it.share.waiting -= it.size
		q.release(it)
		return true
	})
	return evicted
}

// release forgets a message.
func (q *Queue) release(it *item) {
	q.bytes -= it.size
	it.share.bytes -= it.size
	if it.share.count--; it.share.count == 0 {
		delete(q.shares, it.Topic)
	}
}

func (q *Queue) ack(it *item) error {
	now := time.Now()
	q.mu.Lock()
	if closed := it.waitingSince().Add(q.cfg.Timeout); q.cfg.Timeout == 0 || now.Before(closed) {
		it.share.answered = now
	} else {
		it.share.lost = closed
	}
	q.release(it)
	q.mu.Unlock()
	return q.answer(it.msg, nil)
}

// expire implements Message.Expire. It is called for messages in their order.
func (q *Queue) expire(it *item) bool {
	q.mu.Lock()
	if it.Received.After(it.share.lost) && !q.giveUp(it, time.Now()) {
		q.mu.Unlock()
		return false
	}
	q.release(it)
	q.mu.Unlock()
	q.refuse([]*item{it}, errLate)
	return true
}

// giveUp reports whether nats-server has waited too long for the answer to a message. Then what its client has sent until the connection closes is lost, too.
func (q *Queue) giveUp(it *item, now time.Time) bool {
	since := it.waitingSince()
	if q.cfg.Timeout == 0 || now.Sub(since) < q.cfg.Timeout-margin {
		return false
	}
	if closed := since.Add(q.cfg.Timeout); now.After(closed) {
		it.share.lost = closed
		return true
	}
	it.share.lost = now // the answer closes the connection
	q.refusing[it.Topic] = now.Add(refusePause)
	return true
}

// waitingSince returns since when nats-server waits for the answer: it waits for one after the other.
func (it *item) waitingSince() time.Time {
	if it.share.answered.After(it.Received) {
		return it.share.answered
	}
	return it.Received
}

// errBusy says that too much waits, errLate that a message waited for too long.
var (
	errBusy = errors.New("more messages of devices wait than may")
	errLate = errors.New("the message has waited for too long")
)

// answer answers as JetStream does: with an error the broker sends no PUBACK and closes the client's connection.
func (q *Queue) answer(msg *nats.Msg, err error) error {
	if msg.Reply == "" {
		return nil
	}
	body := []byte(`{"stream":"$MQTT_msgs","seq":1}`)
	if err != nil {
		body, _ = json.Marshal(map[string]any{"error": map[string]any{"code": 503, "err_code": 10077, "description": err.Error()}}) // texts and numbers
	}
	if err := q.nc.Publish(msg.Reply, body); err != nil {
		return fmt.Errorf("answer the MQTT broker: %w", err)
	}
	return nil
}

// oldConsumer is that of versions that read messages from the broker's stream.
const oldConsumer = "devicetwin"

// RemoveConsumer removes the consumer of an older version from the broker's stream, and returns how many messages it had not handled; they are lost.
// It would keep all messages of devices in the stream.
func RemoveConsumer(ctx context.Context, js jetstream.JetStream, stream string) (lost uint64, err error) {
	consumer, err := js.Consumer(ctx, stream, oldConsumer)
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("consumer of an older version: %w", err)
	}
	info := consumer.CachedInfo()
	if err := js.DeleteConsumer(ctx, stream, oldConsumer); err != nil {
		return 0, fmt.Errorf("remove the consumer of an older version: %w", err)
	}
	return info.NumPending + uint64(max(info.NumAckPending, 0)), nil //nolint:gosec // not negative
}
