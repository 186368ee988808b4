// Package outbox stores a node's reports and events in the leaf's own JetStream (Outbox) and moves them to the hub (Pump). A report is
// removed from the leaf when the hub has it on disk; a newer state of an object replaces an older one that waits.
package outbox

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/failpoint"
	"github.com/frond-edge/frond/streams/internal/envelope"
	"github.com/frond-edge/frond/streams/internal/flow"
	"github.com/frond-edge/frond/streams/link"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

const (

	// drainTimeout bounds the wait for the last messages that were read ahead: the leaf is in this process.
	drainTimeout = 5 * time.Second
	// outboxDepthPeriod is how often the outbox's depth is read for the metrics.
	outboxDepthPeriod = 5 * time.Second
)

// Outbox stores a node's reports in the leaf's own JetStream until the hub has them. Of several waiting reports of one object it keeps
// only the last.
type Outbox struct {
	node       string
	storeEpoch string
	js         jetstream.JetStream
	codec      *envelope.Codec
}

// New returns the outbox of a node over its in-process connection. storeEpoch marks each report.
func New(node, storeEpoch string, nc *nats.Conn) (*Outbox, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	codec, err := envelope.NewCodec()
	if err != nil {
		return nil, err
	}
	return &Outbox{node: node, storeEpoch: storeEpoch, js: js, codec: codec}, nil
}

// Report stores a report; it is on disk when Report returns.
func (o *Outbox) Report(ctx context.Context, m wire.Message) error {
	return o.storeReport(ctx, subject.Report, m)
}

// ReportEvent stores an event; the oldest events are dropped when too many wait.
func (o *Outbox) ReportEvent(ctx context.Context, m wire.Message) error {
	return o.storeReport(ctx, subject.Event, m)
}

func (o *Outbox) storeReport(ctx context.Context, plane subject.Plane, m wire.Message) error {
	m.Node, m.StoreEpoch = o.node, o.storeEpoch
	if m.Time.IsZero() {
		m.Time = time.Now()
	}
	msg, err := o.codec.Encode(subject.OutboxSubject(plane, o.node, m.Key), m)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	if _, err := o.js.PublishMsg(ctx, msg); err != nil {
		return fmt.Errorf("outbox: %s: %w", m.Key.Human(), err)
	}
	failpoint.At("pump.stored")
	return nil
}

// Pump moves one class of reports from the outbox to the hub. It sends oldest first; only the hub's ack removes a report from the outbox.
// Two states of one object go over one connection in order, and a report that was replaced in the outbox is never sent again, so an older
// state cannot overtake a newer one.
type Pump struct {
	plane  subject.Plane
	stream string
	nc     *nats.Conn
	// source is the outbox, js publishes to the hub.
	source    Source
	js        jetstream.JetStream
	link      link.Link
	bandwidth *flow.BandwidthEstimator
	// uploadedParts is the upload progress of payloads sent in parts, by payload id. It survives a link change, but not the process; only
	// the running uploadPayloads uses it.
	uploadedParts map[string]uploadProgress
	waiting       atomic.Uint64
	metrics       *metrics.Metrics
	log           *zap.Logger
}

// Waiting returns the depth of the outbox at its last reading, at most 5 s ago.
func (p *Pump) Waiting() uint64 { return p.waiting.Load() }

// NewPump returns the pump of a plane, Report or Event. It reads the outbox over local, and sends over nc.
func NewPump(plane subject.Plane, local, nc *nats.Conn, link link.Link, metrics *metrics.Metrics, log *zap.Logger) (*Pump, error) {
	return newPump(plane, local, nc, link, topology.PumpTimeout, metrics, log)
}

func newPump(plane subject.Plane, local, nc *nats.Conn, link link.Link, timeout time.Duration, metrics *metrics.Metrics, log *zap.Logger) (*Pump, error) {
	leaf, err := jetstream.New(local)
	if err != nil {
		return nil, fmt.Errorf("pump: %w", err)
	}
	return newPumpOf(plane, leafSource{js: leaf, stream: streamOf(plane)}, nc, link, timeout, metrics, log)
}

// NewPumpOf returns the pump of a plane, Report or Event, that reads the outbox from a source, and sends over nc.
func NewPumpOf(plane subject.Plane, source Source, nc *nats.Conn, link link.Link, metrics *metrics.Metrics, log *zap.Logger) (*Pump, error) {
	return newPumpOf(plane, source, nc, link, topology.PumpTimeout, metrics, log)
}

func newPumpOf(plane subject.Plane, source Source, nc *nats.Conn, link link.Link, timeout time.Duration, metrics *metrics.Metrics, log *zap.Logger) (*Pump, error) {
	// runSession limits what may be in flight, anew for each link. The library's own limit would also count the messages that a lost link
	// never answered, because the library keeps them until their timeout.
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncTimeout(timeout))
	if err != nil {
		return nil, fmt.Errorf("pump: %w", err)
	}
	return &Pump{plane: plane, stream: streamOf(plane), nc: nc, source: source, js: js, uploadedParts: map[string]uploadProgress{}, link: link, bandwidth: flow.NewBandwidthEstimator(metrics.LinkBudget.WithLabelValues(string(plane))), metrics: metrics, log: log}, nil
}

// Start pumps until ctx ends and then returns nil.
func (p *Pump) Start(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.watchDepth(gctx) })
	g.Go(func() error { return p.runSessions(gctx) })
	return g.Wait()
}

func (p *Pump) runSessions(ctx context.Context) error {
	retry := flow.NewRetryBackoff()
	for ctx.Err() == nil {
		up, changed := p.link.State()
		if !up {
			select {
			case <-ctx.Done():
			case <-changed:
				retry = flow.NewRetryBackoff()
			}
			continue
		}
		moved, err := p.runSession(ctx, changed)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // we were asked to stop
		}
		if moved {
			retry = flow.NewRetryBackoff()
		}
		if err == nil {
			continue
		}
		delay := retry.Step()
		p.log.Info("pump interrupted", zap.String("class", string(p.plane)), zap.Duration("retry", delay), zap.Error(err))
		select {
		case <-ctx.Done():
		case <-changed:
			retry = flow.NewRetryBackoff()
		case <-time.After(delay):
		}
	}
	return nil
}

// watchDepth updates the metrics of the waiting reports.
func (p *Pump) watchDepth(ctx context.Context) error {
	ticker := time.NewTicker(outboxDepthPeriod)
	defer ticker.Stop()
	for {
		if depth, oldest, err := p.source.Depth(ctx); err == nil {
			p.waiting.Store(depth)
			p.metrics.OutboxDepth.WithLabelValues(string(p.plane)).Set(float64(depth))
			p.metrics.OutboxAge.WithLabelValues(string(p.plane)).Set(oldest.Seconds())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
