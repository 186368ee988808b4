package devices

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/devicetwin/broker"
	"github.com/frond-edge/frond/devicetwin/broker/external"
	"github.com/frond-edge/frond/devicetwin/messages"
)

// externalBroker connects the twins and the custom topics with another broker. Each has a session of its own there, so that messages that wait for the
// disk hold up no device. It implements broker.Peer.
type externalBroker struct {
	devices, custom *external.Client
	answers         *answers
	// server is set before start.
	server    *broker.Server
	gate      *messages.Gate
	connected *prometheus.GaugeVec
	events    *prometheus.CounterVec
	// up is nil unless this is the gateway's only broker: then it is 1 while devices' apps are heard.
	up  prometheus.Gauge
	log *zap.Logger
}

// newExternalBroker returns nil where there is none.
func newExternalBroker(node string, m config.MQTT, gate *messages.Gate, reg prometheus.Registerer, log *zap.Logger) (*externalBroker, error) {
	if !m.ExternalBroker() {
		return nil, nil //nolint:nilnil // none is no error
	}
	e := &externalBroker{
		gate: gate, log: log.Named("external"),
		connected: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "frond", Subsystem: "mqtt", Name: "external_up", Help: "1 while a session at the external MQTT broker is connected: devices, messages.",
		}, []string{"session"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "frond", Subsystem: "mqtt", Name: "external_events_total",
			Help: "Lost connections (lost), messages of QoS 0 that were dropped (dropped), messages that the broker sent again and that were known (repeated), " +
				"answers to apps that were not sent (unsent).",
		}, []string{"session", "event"}),
	}
	cfg := externalConfig(m.External)
	var err error
	if e.devices, err = external.New(cfg, "frond-"+node, deviceFilters(), e.receive, sessionObserver{e, "devices"}, e.log); err != nil {
		return nil, fmt.Errorf("devices.mqtt.external: %w", err)
	}
	e.answers = newAnswers(e.devices.Publish, func() { e.events.WithLabelValues("devices", "unsent").Inc() }, e.log)
	if e.custom, err = external.New(cfg, "frond-"+node+"-messages", messages.Filters(), e.receiveCustom, sessionObserver{e, "messages"}, e.log); err != nil {
		return nil, fmt.Errorf("devices.mqtt.external: %w", err)
	}
	if reg == nil {
		return e, nil
	}
	return e, errors.Join(reg.Register(e.connected), reg.Register(e.events))
}

func externalConfig(m config.ExternalMQTT) external.Config {
	return external.Config{
		URL: m.URL, UserFile: m.UserFile, PasswordFile: m.PasswordFile, CAFile: m.CAFile, CertFile: m.CertFile, KeyFile: m.KeyFile,
		KeepAlive: time.Duration(m.KeepAlive),
	}
}

// deviceFilters are the topics that apps publish for the gateway: none of the gateway's own, so that nothing it says comes back to it.
func deviceFilters() []string {
	const device = "$hw/events/device/+/+/"
	return []string{device + "twin/update", device + "twin/get", device + "state/update", "$hw/events/node/+/membership/get"}
}

// start runs both sessions, and sends answers, until ctx ends.
func (e *externalBroker) start(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.devices.Start(gctx) })
	g.Go(func() error { return e.custom.Start(gctx) })
	g.Go(func() error {
		e.answers.start(gctx)
		return nil
	})
	return g.Wait()
}

// Publish takes what the gateway says to apps, which is sent as KubeEdge does with QoS 1. It does not wait for the broker. An app that is away gets
// it if its session does.
func (e *externalBroker) Publish(_ context.Context, all ...broker.Message) error {
	var err error
	for _, m := range all {
		if queued := e.answers.enqueue(m); queued != nil {
			err = queued
		}
	}
	return err
}

// publishTimeout bounds how long one answer holds up those behind it.
const publishTimeout = 2 * time.Second

// receive gives a message of a device's app to the twins.
func (e *externalBroker) receive(ctx context.Context, m external.Message, ack func()) error {
	select {
	case <-e.server.Ready(): // the devices are known
	case <-ctx.Done():
		return ctx.Err()
	}
	return e.server.Receive(ctx, broker.Message{Topic: m.Topic, Payload: m.Payload, Received: devicetwin.Reception{Time: m.Received}}, ack)
}

// receiveCustom stores a message of a custom topic, as often as it takes, and acknowledges it then. One that is refused is acknowledged, too: it would
// come again for ever.
func (e *externalBroker) receiveCustom(ctx context.Context, m external.Message, ack func()) error {
	message := messages.Message{Topic: m.Topic, Payload: m.Payload, External: true, Received: m.Received}
	retry := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 8, Cap: 10 * time.Second}
	for {
		done, err := e.gate.Enqueue(ctx, message)
		if err == nil {
			select {
			case err = <-done:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		e.gate.Settle(message, err)
		if err == nil || errors.Is(err, messages.ErrRefused) {
			ack()
			return nil
		}
		select {
		case <-time.After(retry.Step()):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sessionObserver counts what happens to a session. It implements external.Observer.
type sessionObserver struct {
	e       *externalBroker
	session string
}

func (o sessionObserver) Connected(up bool, _ error) {
	value := 0.0
	if up {
		value = 1
	} else {
		o.e.events.WithLabelValues(o.session, "lost").Inc()
	}
	o.e.connected.WithLabelValues(o.session).Set(value)
	if o.e.up != nil && o.session == "devices" {
		o.e.up.Set(value)
	}
}

func (o sessionObserver) Dropped() {
	o.e.events.WithLabelValues(o.session, "dropped").Inc()
	if o.session == "messages" {
		o.e.gate.Count(true, "dropped")
	}
}

func (o sessionObserver) Repeated() { o.e.events.WithLabelValues(o.session, "repeated").Inc() }
