package sensor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// connection is one MQTT connection of a device.
type connection struct {
	app    paho.Client
	prefix string // of the device's topics, with the last slash
	// lost has the error with which the connection ended.
	lost chan error
	// desired has the newest desired value that was not taken from it yet.
	desired chan string
	// results has the answers to what was reported; more than one only if an earlier report was given up.
	results chan result
}

// result is what twin/update/result has in it that a sensor needs.
type result struct {
	EventID string `json:"event_id"`
	Code    int    `json:"code"`
	Reason  string `json:"reason"`
}

// dial connects, subscribes to what the gateway tells the device, and has the broker say that it is offline if the connection breaks.
func dial(ctx context.Context, cfg Config) (*connection, error) {
	c := &connection{
		prefix: "$hw/events/device/" + cfg.Namespace + "/" + cfg.Name + "/",
		lost:   make(chan error, 1), desired: make(chan string, 1), results: make(chan result, 16),
	}
	c.app = paho.NewClient(paho.NewClientOptions().AddBroker("tcp://"+cfg.Broker).SetClientID("sensor-"+cfg.Namespace+"-"+cfg.Name).
		SetAutoReconnect(false).SetConnectTimeout(answerTimeout).SetKeepAlive(10*time.Second).
		SetWill(c.prefix+"state/update", statePayload("offline"), 1, false).
		SetConnectionLostHandler(func(_ paho.Client, err error) { c.lost <- err }).
		SetCustomOpenConnectionFn(func(at *url.URL, _ paho.ClientOptions) (net.Conn, error) {
			return wan.Dial(ctx, cfg.NetworkNamespace, at.Host)
		}))
	if err := await(ctx, c.app.Connect()); err != nil {
		c.close()
		return nil, fmt.Errorf("connect to %s: %w", cfg.Broker, err)
	}
	for topic, take := range map[string]paho.MessageHandler{"twin/update/result": c.takeResult, "twin/update/delta": c.takeDelta} {
		if err := await(ctx, c.app.Subscribe(c.prefix+topic, 1, take)); err != nil {
			c.close()
			return nil, fmt.Errorf("subscribe to %s: %w", topic, err)
		}
	}
	return c, nil
}

func (c *connection) close() { c.app.Disconnect(100) }

// errNoAnswer says that nothing came within answerTimeout.
var errNoAnswer = errors.New("no answer")

// await waits until the broker has answered.
func await(ctx context.Context, token paho.Token) error {
	select {
	case <-token.Done():
		return token.Error()
	case <-time.After(answerTimeout):
		return errNoAnswer
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *connection) takeResult(_ paho.Client, m paho.Message) {
	var r result
	if json.Unmarshal(m.Payload(), &r) != nil {
		return // not the gateway's
	}
	select {
	case c.results <- r:
	default: // nobody waits for it
	}
}

// takeDelta keeps the newest desired value. Handlers run one after another.
func (c *connection) takeDelta(_ paho.Client, m paho.Message) {
	var delta struct {
		Delta map[string]string `json:"delta"`
	}
	value, ok := "", false
	if json.Unmarshal(m.Payload(), &delta) == nil {
		value, ok = delta.Delta[Setpoint]
	}
	if !ok {
		return
	}
	select {
	case <-c.desired:
	default:
	}
	c.desired <- value
}

func statePayload(state string) string { return `{"event_id":"state","state":"` + state + `"}` }

func (c *connection) publishState(ctx context.Context, state string) error {
	if err := await(ctx, c.app.Publish(c.prefix+"state/update", 1, false, statePayload(state))); err != nil {
		return fmt.Errorf("publish state: %w", err)
	}
	return nil
}

// report publishes the value of a property with the present time, and waits until the gateway has answered. refused is its answer if that is an error.
func (c *connection) report(ctx context.Context, property, value string) (refused, err error) {
	now, id := time.Now().UnixMilli(), property+"-"+value
	update := map[string]any{"event_id": id, "timestamp": now, "twin": map[string]any{property: map[string]any{
		"actual": map[string]any{"value": value, "metadata": map[string]any{"timestamp": now}},
	}}}
	payload, err := json.Marshal(update)
	if err != nil {
		return nil, fmt.Errorf("encode value: %w", err)
	}
	if err := await(ctx, c.app.Publish(c.prefix+"twin/update", 1, false, payload)); err != nil {
		return nil, fmt.Errorf("publish %s: %w", property, err)
	}
	timeout := time.NewTimer(answerTimeout)
	defer timeout.Stop()
	for {
		select {
		case r := <-c.results:
			switch {
			case r.EventID != id:
				continue // of a report that was given up
			case r.Code != 0:
				return fmt.Errorf("code %d: %s", r.Code, r.Reason), nil
			}
			return nil, nil
		case err := <-c.lost:
			return nil, err
		case <-timeout.C:
			return nil, fmt.Errorf("%s: %w", id, errNoAnswer)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
