// Package inbound takes what apps publish to the gateway, on the topics of devices and nodes, from the gateway's own MQTT broker.
//
// nats-server answers a publish of QoS 1 or 2 when its store has answered. For these topics that store is this package: whoever handles a message
// answers it, after which nats-server sends the PUBACK, in the order of the client's packets. A client has at most 1,024 messages without an answer
// (nats-server), and its connection is not read beyond that: one that is faster than the gateway is slowed down, and nothing that was answered is dropped.
// Messages come in the order in which the broker took them. What waits is bounded: beyond it messages are refused and counted.
package inbound

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/frond-edge/frond/devicetwin/broker/access"
)

const (
	// defaultWaiting and defaultBytes bound the messages that wait: 128 of each of 256 clients, and what a gateway of 512 MB can spare.
	defaultWaiting = 32 << 10
	defaultBytes   = 16 << 20
	// overhead is about what a waiting message takes beside its payload, in bytes.
	overhead = 256
	// refusePause is how long all messages are refused after one: those that their client sent behind it must not be handled before it.
	refusePause = time.Second
)

// Config says how nats-server writes messages, and what may wait.
type Config struct {
	// StorePrefix is that of the subjects to which nats-server sends a message of QoS 1 or 2 to have it stored.
	StorePrefix string
	// LocalPrefix is before the subject under which a message goes to the broker's own stream, for apps that subscribe with QoS 1.
	LocalPrefix string
	// MaxWaiting and MaxBytes bound what waits; 0 is 32,768 messages and 16 MiB.
	MaxWaiting, MaxBytes int
	// Refused counts the messages beyond that.
	Refused prometheus.Counter
}

// Message is a message of QoS 1 or 2.
type Message struct {
	Topic    string
	Payload  []byte
	Received time.Time
	// Ack answers the broker, once: the message is handled. Without it the client gets no PUBACK, and sends the message again when it has connected anew.
	Ack func() error
}

// Queue has the messages that wait to be handled.
type Queue struct {
	nc  *nats.Conn
	cfg Config
	// waiting has room for MaxWaiting.
	waiting chan Message

	mu       sync.Mutex
	bytes    int       // guarded by mu; of the messages that are not answered
	refusing time.Time // guarded by mu; until when all are refused
}

// New subscribes over the gateway's own connection to the broker.
func New(nc *nats.Conn, cfg Config) (*Queue, error) {
	if cfg.MaxWaiting == 0 {
		cfg.MaxWaiting = defaultWaiting
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = defaultBytes
	}
	q := &Queue{nc: nc, cfg: cfg, waiting: make(chan Message, cfg.MaxWaiting)}
	sub, err := nc.Subscribe(cfg.StorePrefix+access.Events(), q.receive) // one, so that all are in order
	if err != nil {
		return nil, fmt.Errorf("subscribe to messages of devices: %w", err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil { // receive does not wait, and bounds them
		return nil, fmt.Errorf("subscribe to messages of devices: %w", err)
	}
	return q, nil
}

// Messages returns the messages in their order.
func (q *Queue) Messages() <-chan Message { return q.waiting }

// receive takes a message from nats.go. It does not block.
func (q *Queue) receive(msg *nats.Msg) {
	subject := strings.TrimPrefix(msg.Subject, q.cfg.StorePrefix)
	if !access.IsOfDevices(subject) {
		return // such as a custom topic, which somebody else answers
	}
	size := len(msg.Data) + overhead
	m := Message{Topic: access.TopicOf(subject), Payload: msg.Data, Received: time.Now(), Ack: func() error { return q.ack(msg, size) }}
	if q.reserve(m, size) {
		// Apps that subscribe with QoS 1 get it before the answers to it. A closed connection ends the broker, and the client sends the message again.
		_ = q.nc.PublishMsg(&nats.Msg{Subject: q.cfg.LocalPrefix + subject, Header: msg.Header, Data: msg.Data})
		return
	}
	q.cfg.Refused.Inc()
	_ = q.answer(msg, errBusy)
}

// reserve passes a message on if there is place for it.
func (q *Queue) reserve(m Message, size int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if time.Now().Before(q.refusing) {
		return false
	}
	if q.bytes+size <= q.cfg.MaxBytes {
		select {
		case q.waiting <- m:
			q.bytes += size
			return true
		default:
		}
	}
	q.refusing = time.Now().Add(refusePause)
	return false
}

func (q *Queue) ack(msg *nats.Msg, size int) error {
	q.mu.Lock()
	q.bytes -= size
	q.mu.Unlock()
	return q.answer(msg, nil)
}

// errBusy says that too much waits.
var errBusy = errors.New("more messages of devices wait than may")

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
