package external

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// maxWaitingBytes and maxWaiting bound the messages that wait for the handler. Of QoS 0 further ones are dropped. Of QoS 1 the connection is
	// given up: the broker sends them again, in their order.
	maxWaitingBytes = 8 << 20
	maxWaiting      = 4096
	// qos is that of subscriptions and of what the gateway publishes.
	qos = 1
	// reconnectMin and reconnectMax bound the pauses between connects.
	reconnectMin = 500 * time.Millisecond
	reconnectMax = 30 * time.Second
)

// ErrNotConnected says that the broker is not there.
var ErrNotConnected = errors.New("not connected to the external MQTT broker")

// Message is a message from the broker.
type Message struct {
	Topic    string
	Payload  []byte
	Received time.Time
}

// Handler takes a message; the messages come in their order, one at a time. ack must be called once the message is safe, from any goroutine, in the
// order of the messages. An error means that ctx has ended.
type Handler func(ctx context.Context, m Message, ack func()) error

// Observer is told what happens. All may be called at any time, and must not block.
type Observer interface {
	// Connected says whether there is a connection; err is why it was lost.
	Connected(up bool, err error)
	// Dropped counts messages of QoS 0 beyond what may wait.
	Dropped()
	// Repeated counts messages that the broker sent again and that were taken before.
	Repeated()
}

// Client has one session at a broker. Create it with New and call Start once.
type Client struct {
	cfg      Config
	clientID string
	filters  []string
	handle   Handler
	observer Observer
	log      *zap.Logger
	// arrived has room for maxWaiting.
	arrived chan *delivery

	mu      sync.Mutex
	session *session    // guarded by mu; what the session's broker may send again
	bytes   int         // guarded by mu; of the messages that wait
	conn    paho.Client // guarded by mu; nil while there is none
}

// New returns a client with a session of its own name. It connects nowhere.
func New(cfg Config, clientID string, filters []string, handle Handler, observer Observer, log *zap.Logger) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Client{
		cfg: cfg, clientID: clientID, filters: filters, handle: handle, observer: observer, log: log, arrived: make(chan *delivery, maxWaiting), session: newSession(),
	}, nil
}

// Start connects, again and again, and handles messages until ctx ends; then it returns nil.
func (c *Client) Start(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for {
			select {
			case d := <-c.arrived:
				err := c.handle(gctx, d.message, func() { c.acknowledge(d) })
				c.mu.Lock()
				c.bytes -= len(d.message.Payload)
				c.mu.Unlock()
				if err != nil {
					return err
				}
			case <-gctx.Done():
				return nil
			}
		}
	})
	g.Go(func() error {
		c.connectForever(gctx)
		return nil
	})
	if err := g.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// connectForever keeps a connection until ctx ends.
func (c *Client) connectForever(ctx context.Context) {
	fresh := wait.Backoff{Duration: reconnectMin, Factor: 2, Jitter: 0.3, Steps: 10, Cap: reconnectMax}
	backoff := fresh
	for ctx.Err() == nil {
		began := time.Now()
		err := c.connect(ctx)
		if ctx.Err() != nil {
			return
		}
		c.observer.Connected(false, err)
		if time.Since(began) > reconnectMax {
			backoff = fresh
		}
		pause := backoff.Step()
		c.log.Warn("no connection to the external MQTT broker", zap.String("url", c.cfg.URL), zap.Duration("retry", pause), zap.Error(err))
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// connect connects, subscribes and waits until the connection is lost or ctx ends.
func (c *Client) connect(ctx context.Context) error {
	o, err := c.cfg.options(c.clientID)
	if err != nil {
		return err
	}
	lost := make(chan error, 2) // paho's loss, and ours
	end := func(err error) {
		select {
		case lost <- err:
		default:
		}
	}
	o.SetConnectionLostHandler(func(_ paho.Client, err error) { end(err) })
	full := false // what comes behind a message that has no place comes again behind it
	o.SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) {
		if full = full || !c.receive(m); full {
			end(errors.New("more messages wait to be handled than may"))
		}
	})
	conn := paho.NewClient(o)
	defer conn.Disconnect(0)
	token := conn.Connect()
	if err := await(ctx, token); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if !token.(*paho.ConnectToken).SessionPresent() {
		c.forget()
	}
	filters := map[string]byte{}
	for _, f := range c.filters {
		filters[f] = qos
	}
	subscription := conn.SubscribeMultiple(filters, nil)
	if err := await(ctx, subscription); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	const failure = 0x80
	for filter, granted := range subscription.(*paho.SubscribeToken).Result() {
		if granted == failure {
			return fmt.Errorf("subscribe: the broker refuses %s: allow it for the user of this gateway", filter)
		}
	}
	c.setConn(conn)
	defer c.setConn(nil)
	c.observer.Connected(true, nil)
	select {
	case err := <-lost:
		return err
	case <-ctx.Done():
		return nil
	}
}

func await(ctx context.Context, token paho.Token) error {
	select {
	case <-token.Done():
		return token.Error()
	case <-time.After(connectTimeout):
		return errors.New("no answer")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Client) setConn(conn paho.Client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = conn
}

// forget forgets what an earlier session had sent: the broker does not know it any more.
func (c *Client) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session = newSession()
}

// receive takes a message from paho, and reports whether there is place for it. It does not block.
func (c *Client) receive(m paho.Message) bool {
	taken, again := c.take(m)
	if again {
		m.Ack() // without mu: paho may wait
	}
	return taken
}

// take reports whether there is place for a message, and whether it was acknowledged before.
func (c *Client) take(m paho.Message) (taken, again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	full := c.bytes+len(m.Payload()) > maxWaitingBytes || len(c.arrived) == cap(c.arrived)
	if m.Qos() == 0 {
		if full {
			c.observer.Dropped()
			return true, false
		}
		c.enqueue(&delivery{message: messageOf(m), acked: true})
		return true, false
	}
	if known := c.session.find(m); known != nil {
		c.observer.Repeated()
		known.ack = m.Ack // the connection of the first delivery is gone
		return true, known.acked
	}
	if full {
		return false, false
	}
	d := &delivery{message: messageOf(m), ack: m.Ack}
	c.session.add(m, d)
	c.enqueue(d)
	return true, false
}

// enqueue passes a message on; the caller holds mu and knows that there is place.
func (c *Client) enqueue(d *delivery) {
	c.bytes += len(d.message.Payload)
	c.arrived <- d
}

func messageOf(m paho.Message) Message {
	return Message{Topic: m.Topic(), Payload: m.Payload(), Received: time.Now()}
}

// acknowledge acknowledges a message, over the connection on which it came last.
func (c *Client) acknowledge(d *delivery) {
	c.mu.Lock()
	ack := d.ack
	done := d.acked
	d.acked = true
	c.mu.Unlock()
	if !done {
		ack() // without mu: paho may wait
	}
}

// Publish sends a message with QoS 1 and waits for the broker's answer.
func (c *Client) Publish(ctx context.Context, topic string, payload []byte) error {
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	if conn == nil {
		return ErrNotConnected
	}
	if err := await(ctx, conn.Publish(topic, qos, false, payload)); err != nil {
		return fmt.Errorf("publish %s to the external MQTT broker: %w", topic, err)
	}
	return nil
}
