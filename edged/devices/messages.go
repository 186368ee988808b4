package devices

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/devicetwin/messages"
	"github.com/frond-edge/frond/streams/telemetry"
)

// outgoing is the way of one kind of records to the hub: kept on the leaf's disk, then sent.
type outgoing struct {
	store *telemetry.Store
	pump  *telemetry.Pump
}

// openOutgoing opens the store of a kind, within bounds.
func (d *Devices) openOutgoing(ctx context.Context, kind telemetry.Kind, name string, bounds telemetry.StoreConfig, bytesPerSecond int, metrics prometheus.Registerer) (outgoing, error) {
	log := d.log.Named(name)
	store, err := telemetry.OpenStore(ctx, kind, bounds, d.cfg.Local, telemetry.NewStoreMetrics(kind, metrics), log)
	if err != nil {
		return outgoing{}, err
	}
	pump := telemetry.NewPump(telemetry.PumpConfig{Node: d.cfg.Node, BytesPerSecond: bytesPerSecond}, store, d.cfg.Cloud, d.cfg.Link, telemetry.NewPumpMetrics(kind, metrics), log)
	return outgoing{store: store, pump: pump}, nil
}

// start runs store and pump in g until ctx ends.
func (o outgoing) start(ctx context.Context, g *errgroup.Group) {
	g.Go(func() error { return o.store.Start(ctx) })
	g.Go(func() error { return o.pump.Start(ctx) })
}

// openSamples opens the way of samples, openMessages that of messages, whose gate the brokers use.
func (d *Devices) openSamples(ctx context.Context, metrics prometheus.Registerer) (outgoing, error) {
	t := d.cfg.Settings.Telemetry
	return d.openOutgoing(ctx, telemetry.Samples(), "telemetry", telemetry.StoreConfig{MaxBytes: int64(t.MaxMiB) << 20, MaxAge: time.Duration(t.MaxAge)}, t.BytesPerSecond, metrics)
}

func (d *Devices) openMessages(ctx context.Context, metrics prometheus.Registerer) (outgoing, *messages.Gate, error) {
	m := d.cfg.Settings.Messages
	out, err := d.openOutgoing(ctx, telemetry.Messages(), "messages", telemetry.StoreConfig{MaxBytes: int64(m.MaxMiB) << 20, MaxAge: time.Duration(m.MaxAge)}, m.BytesPerSecond, metrics)
	if err != nil {
		return out, nil, err
	}
	gate, err := messages.NewGate(messageSink{out.store, d.cfg.LowSpace}, m.MaxPayloadKiB<<10, metrics, d.log.Named("messages"))
	return out, gate, err
}

// messageSink gives messages of apps to the store. It implements messages.Sink.
type messageSink struct {
	store *telemetry.Store
	space diskSpace
}

func (s messageSink) Enqueue(ctx context.Context, m messages.Message) (<-chan error, error) {
	if err := s.space.check(); err != nil {
		return nil, err
	}
	from := telemetry.BrokerInternal
	if m.External {
		from = telemetry.BrokerExternal
	}
	done, err := s.store.EnqueueMessage(ctx, &telemetry.Message{
		Topic: m.Topic, Payload: m.Payload, Broker: from, User: m.User, GatewayTime: m.Received, ClockSynced: isClockSynced(),
	})
	if errors.Is(err, wire.ErrPermanent) {
		return nil, fmt.Errorf("%w: %w", messages.ErrRefused, err)
	}
	return done, err
}
