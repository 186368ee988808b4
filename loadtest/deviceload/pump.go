package deviceload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/frond-edge/frond/internal/devcluster/devices/sensor"
	"github.com/frond-edge/frond/loadtest/poll"
	"github.com/frond-edge/frond/loadtest/workload"
)

// answerTimeout is longer than any answer takes.
const answerTimeout = time.Minute

// pump is an MQTT connection of a device. One goroutine at a time uses it.
type pump struct {
	load   *Load
	name   string
	prefix string // of its topics
	app    paho.Client
	// next is the number of its next sample; acked counts those with an answer.
	next, acked int64
	results     chan result
	deltas      chan string
}

// result is what is read of twin/update/result.
type result struct {
	EventID string `json:"event_id"`
	Code    int    `json:"code"`
	Reason  string `json:"reason"`
}

// connectPumps connects a client for each name. Close them all, also after an error.
func connectPumps(ctx context.Context, l *Load, names []string) ([]*pump, error) {
	pumps := make([]*pump, len(names))
	err := workload.ForEach(ctx, names, func(ctx context.Context, i int, name string) (err error) {
		pumps[i], err = connectPump(ctx, l, name)
		return err
	})
	return pumps, err
}

func closePumps(pumps []*pump) {
	for _, p := range pumps {
		if p != nil {
			p.app.Disconnect(0)
		}
	}
}

// connectPump connects, as soon as the broker takes clients, and subscribes to the device's deltas.
func connectPump(ctx context.Context, l *Load, name string) (*pump, error) {
	p := &pump{load: l, name: name, prefix: "$hw/events/device/" + workload.Namespace + "/" + name + "/", next: 1, results: make(chan result, 16), deltas: make(chan string, 16)}
	p.app = paho.NewClient(paho.NewClientOptions().AddBroker("tcp://" + l.cluster.MQTTAddress(l.edge)).SetClientID("load-" + name).SetAutoReconnect(false).
		SetConnectTimeout(answerTimeout).SetKeepAlive(5 * time.Minute).
		SetCustomOpenConnectionFn(func(at *url.URL, _ paho.ClientOptions) (net.Conn, error) {
			return l.cluster.DialFrom(ctx, l.edge, at.Host)
		}))
	var last error
	err := poll.Until(ctx, "the broker takes "+name, func(ctx context.Context) (bool, error) {
		last = await(ctx, p.app.Connect()) // an edgecore that has just started has no broker yet
		return last == nil, nil
	})
	if err != nil {
		return nil, errors.Join(err, last)
	}
	return p, p.subscribe(ctx, "twin/update/delta", p.takeDelta)
}

func (p *pump) subscribe(ctx context.Context, topic string, take paho.MessageHandler) error {
	if err := await(ctx, p.app.Subscribe(p.prefix+topic, 1, take)); err != nil {
		return fmt.Errorf("subscribe to %s of %s: %w", topic, p.name, err)
	}
	return nil
}

// await waits until the broker has answered.
func await(ctx context.Context, token paho.Token) error {
	timeout := time.NewTimer(answerTimeout)
	defer timeout.Stop()
	select {
	case <-token.Done():
		return token.Error()
	case <-timeout.C:
		return fmt.Errorf("no answer within %s", answerTimeout)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *pump) takeDelta(_ paho.Client, m paho.Message) {
	var delta struct {
		Delta map[string]string `json:"delta"`
	}
	if json.Unmarshal(m.Payload(), &delta) != nil {
		return // not the gateway's
	}
	select {
	case p.deltas <- delta.Delta[sensor.Setpoint]:
	default: // nobody waits
	}
}

func (p *pump) takeResult(_ paho.Client, m paho.Message) {
	var r result
	if json.Unmarshal(m.Payload(), &r) != nil {
		return // not the gateway's
	}
	select {
	case p.results <- r:
	default: // nobody waits
	}
}

// publish sends a value with a device's time and waits for the PUBACK.
func (p *pump) publish(ctx context.Context, property, value string, at time.Time) error {
	text := fmt.Sprintf(`{"event_id":%q,"timestamp":%d,"twin":{%q:{"actual":{"value":%q,"metadata":{"timestamp":%[2]d}},"metadata":{"type":"int"}}}}`,
		value, at.UnixMilli(), property, value)
	if err := await(ctx, p.app.Publish(p.prefix+"twin/update", 1, false, text)); err != nil {
		return fmt.Errorf("publish of %s: %w", p.name, err)
	}
	return nil
}

// send sends the next number and waits for the PUBACK.
func (p *pump) send(ctx context.Context) error {
	if err := p.publish(ctx, sensor.Sample, strconv.FormatInt(p.next, 10), p.load.timeOf(p.next)); err != nil {
		return err
	}
	p.acked, p.next = p.next, p.next+1
	return nil
}

// sendAnswered sends the next number and waits until edgecore has answered that it keeps it.
func (p *pump) sendAnswered(ctx context.Context) error {
	id := strconv.FormatInt(p.next, 10)
	if err := p.send(ctx); err != nil {
		return err
	}
	r, err := p.awaitResult(ctx, id, answerTimeout)
	if err == nil && r.Code != 0 {
		err = fmt.Errorf("value %s of %s is refused: code %d: %s", id, p.name, r.Code, r.Reason)
	}
	return err
}

var errNoResult = errors.New("no answer to a value")

func (p *pump) awaitResult(ctx context.Context, id string, limit time.Duration) (result, error) {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for {
		select {
		case r := <-p.results:
			if r.EventID == id {
				return r, nil
			}
		case <-timeout.C:
			return result{}, fmt.Errorf("%s: %w within %s", p.name, errNoResult, limit)
		case <-ctx.Done():
			return result{}, context.Cause(ctx)
		}
	}
}

// awaitKnown waits until the gateway has the Device: it refuses values before. The values are of the setpoint, so that samples begin at 1.
func (p *pump) awaitKnown(ctx context.Context) error {
	if err := p.subscribe(ctx, "twin/update/result", p.takeResult); err != nil {
		return err
	}
	return poll.Until(ctx, "the gateway knows "+p.name, func(ctx context.Context) (bool, error) {
		if err := p.publish(ctx, sensor.Setpoint, "0", time.Now()); err != nil {
			return false, err
		}
		r, err := p.awaitResult(ctx, "0", time.Second)
		if errors.Is(err, errNoResult) {
			return false, nil
		}
		return err == nil && r.Code == 0, err
	})
}

// withoutResults ends the subscription to answers, which would be half of the messages.
func (p *pump) withoutResults(ctx context.Context) error {
	if err := await(ctx, p.app.Unsubscribe(p.prefix+"twin/update/result")); err != nil {
		return fmt.Errorf("unsubscribe %s: %w", p.name, err)
	}
	return nil
}

// timeOf is the device's time of a sample. No client sends 1,000 a second, so that it is never in the future.
func (l *Load) timeOf(number int64) time.Time {
	return l.base.Add(time.Duration(number) * time.Millisecond)
}
