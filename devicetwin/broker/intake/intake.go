// Package intake takes the messages of custom topics from the gateway's own MQTT broker.
//
// nats-server answers a publish of QoS 1 or 2 when its store has answered. For custom topics that store is this package: it answers when the message
// is on the gateway's disk, synced. So there is no second copy, no delivery that can be repeated, and nothing that devices wait for. Afterwards the
// message goes to the broker's own stream, for apps of this gateway that subscribe with QoS 1.
package intake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/devicetwin/broker/access"
	"github.com/frond-edge/frond/devicetwin/messages"
)

const (
	// LocalPrefix is before the subjects under which messages go to the broker's own stream.
	LocalPrefix = "frond.local."
	// maxWaiting and maxWaitingBytes bound the messages that wait for the disk. Further ones are refused: no PUBACK, the broker closes the client's
	// connection, and the client sends them again.
	maxWaiting      = 4096
	maxWaitingBytes = 4 << 20
	// refusePause is how long all messages are refused after one: those that their client sent behind it must not be stored before it.
	refusePause = time.Second
)

// Intake answers the broker. Create it with New and call Start once.
type Intake struct {
	nc        *nats.Conn
	gate      *messages.Gate
	users     map[string]access.User
	prefix    string // of the subjects of QoS 1 and 2
	qosHeader string
	// arrived has room for maxWaiting.
	arrived chan *arrival

	mu       sync.Mutex
	bytes    int       // guarded by mu; of the messages that arrived and are not answered
	refusing time.Time // guarded by mu; until when all are refused
}

// arrival is a message from the broker.
type arrival struct {
	msg  *nats.Msg
	m    messages.Message
	done <-chan error
	err  error
}

// New subscribes over the gateway's own connection to the broker. prefix is that of the subjects of stored messages, qosHeader the header with the
// QoS of a message. What arrives waits for Start.
func New(nc *nats.Conn, gate *messages.Gate, users map[string]access.User, prefix, qosHeader string) (*Intake, error) {
	t := &Intake{nc: nc, gate: gate, users: users, prefix: prefix, qosHeader: qosHeader, arrived: make(chan *arrival, maxWaiting)}
	for _, subject := range access.Custom() {
		for _, s := range []string{prefix + subject, subject} {
			if _, err := nc.Subscribe(s, t.receive); err != nil {
				return nil, fmt.Errorf("subscribe to custom topics: %w", err)
			}
		}
	}
	return t, nil
}

// receive takes a message from nats.go. It does not block.
func (t *Intake) receive(msg *nats.Msg) {
	subject, kept := strings.CutPrefix(msg.Subject, t.prefix)
	if !kept && msg.Header.Get(t.qosHeader) != "0" {
		return // it comes with the prefix, too
	}
	m := messages.Message{Topic: access.TopicOf(subject), Payload: msg.Data, Received: time.Now()}
	if !messages.Matches(m.Topic) { // such as $hw/user/x
		t.gate.Count(false, "unclaimed")
		t.answer(msg, nil)
		return
	}
	first, _, _ := strings.Cut(m.Topic, "/")
	if _, ok := t.users[first]; ok {
		m.User = first // nobody else may publish there
	}
	a := &arrival{msg: msg, m: m}
	if t.reserve(a) {
		return
	}
	result := "dropped"
	if kept {
		result = "busy"
	}
	t.gate.Count(false, result)
	t.answer(msg, errBusy)
}

// reserve passes a message on if there is place for it.
func (t *Intake) reserve(a *arrival) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if now.Before(t.refusing) {
		return false
	}
	if t.bytes+len(a.m.Payload) > maxWaitingBytes {
		t.refusing = now.Add(refusePause)
		return false
	}
	select {
	case t.arrived <- a:
		t.bytes += len(a.m.Payload)
		return true
	default:
		t.refusing = now.Add(refusePause)
		return false
	}
}

// errBusy says that too much waits.
var errBusy = errors.New("more messages wait for the disk than may")

// Start stores and answers until ctx ends and then returns nil.
func (t *Intake) Start(ctx context.Context) error {
	pending := make(chan *arrival, maxWaiting)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for {
			select {
			case a := <-t.arrived:
				a.done, a.err = t.gate.Enqueue(gctx, a.m)
				select {
				case pending <- a:
				case <-gctx.Done():
					return nil
				}
			case <-gctx.Done():
				return nil
			}
		}
	})
	g.Go(func() error {
		for {
			select {
			case a := <-pending:
				t.settle(gctx, a)
			case <-gctx.Done():
				return nil
			}
		}
	})
	return g.Wait()
}

// settle waits for a message to be stored, and answers the broker.
func (t *Intake) settle(ctx context.Context, a *arrival) {
	if a.err == nil {
		select {
		case a.err = <-a.done:
		case <-ctx.Done():
			return // no PUBACK: the app sends it again
		}
	}
	if ctx.Err() != nil {
		return
	}
	t.gate.Settle(a.m, a.err)
	t.mu.Lock()
	t.bytes -= len(a.m.Payload)
	if a.err != nil && !errors.Is(a.err, messages.ErrRefused) {
		t.refusing = time.Now().Add(refusePause)
	}
	t.mu.Unlock()
	t.answer(a.msg, a.err)
}

// answer answers as JetStream does: with an error the broker sends no PUBACK and closes the client's connection. A message that is stored goes on to
// apps of this gateway.
func (t *Intake) answer(msg *nats.Msg, err error) {
	subject, kept := strings.CutPrefix(msg.Subject, t.prefix)
	if !kept || msg.Reply == "" {
		return
	}
	body := []byte(`{"stream":"$MQTT_msgs","seq":1}`)
	if err != nil {
		body, _ = json.Marshal(map[string]any{"error": map[string]any{"code": 503, "err_code": 10077, "description": err.Error()}}) // texts and numbers
	} else {
		_ = t.nc.PublishMsg(&nats.Msg{Subject: LocalPrefix + subject, Header: msg.Header, Data: msg.Data}) // a closed connection ends Start's caller
	}
	_ = t.nc.Publish(msg.Reply, body)
}
