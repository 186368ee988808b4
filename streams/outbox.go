package streams

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/crash"
)

const (
	// pumpWindow is the number of reports in flight to the hub; at 2 KB each that is half a second of a 1 Mbit/s link.
	pumpWindow = 32
	// pumpTimeout is how long a report waits for the hub's ack before it is sent again: longer than a leader election.
	pumpTimeout = 12 * time.Second
	// backTimeout bounds the wait for the last of what was read ahead: the leaf is in this process.
	backTimeout = 5 * time.Second
	// depthPeriod is how often the outbox's depth is read for the metrics.
	depthPeriod = 5 * time.Second
)

// Outbox keeps what a node has to say until the hub has it, in the leaf's own JetStream. Of several reports of one object
// that wait, only the last is kept.
type Outbox struct {
	node  string
	epoch string
	js    jetstream.JetStream
	codec *codec
}

// NewOutbox makes the outbox of a node over its in-process connection. storeEpoch marks each report.
func NewOutbox(node, storeEpoch string, nc *nats.Conn) (*Outbox, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	codec, err := newCodec()
	if err != nil {
		return nil, err
	}
	return &Outbox{node: node, epoch: storeEpoch, js: js, codec: codec}, nil
}

// Report stores a report; it is on disk when Report returns.
func (o *Outbox) Report(ctx context.Context, m wire.Message) error { return o.put(ctx, Report, m) }

// ReportEvent stores an event; the oldest events are dropped when too many wait.
func (o *Outbox) ReportEvent(ctx context.Context, m wire.Message) error { return o.put(ctx, Event, m) }

func (o *Outbox) put(ctx context.Context, plane Plane, m wire.Message) error {
	m.Node, m.StoreEpoch = o.node, o.epoch
	if m.Time.IsZero() {
		m.Time = time.Now()
	}
	msg, err := o.codec.encode(outboxSubject(plane, o.node, m.Key), m)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	if _, err := o.js.PublishMsg(ctx, msg); err != nil {
		return fmt.Errorf("outbox: %s: %w", m.Key.Human(), err)
	}
	crash.At("pump.stored")
	return nil
}

// Pump moves one class of reports from the outbox to the hub. It sends oldest first; only the hub's ack removes a report
// from the outbox. Two states of one object go over one connection in order, and what was replaced in the outbox is
// never sent again, so an older state cannot overtake a newer one.
type Pump struct {
	plane   Plane
	stream  string
	js      jetstream.JetStream
	link    Link
	pace    *pace
	waiting atomic.Uint64
	metrics *Metrics
	log     *zap.Logger
}

// Waiting returns how many reports waited when the outbox was last looked at, at most 5 s ago.
func (p *Pump) Waiting() uint64 { return p.waiting.Load() }

// NewPump makes the pump of a plane, Report or Event.
func NewPump(plane Plane, nc *nats.Conn, link Link, metrics *Metrics, log *zap.Logger) (*Pump, error) {
	return newPump(plane, nc, link, pumpTimeout, metrics, log)
}

func newPump(plane Plane, nc *nats.Conn, link Link, timeout time.Duration, metrics *Metrics, log *zap.Logger) (*Pump, error) {
	// What may be in flight is limited by move, for each link anew: what a lost one never answered stays with the library until its
	// time is over, and its own limit would count that.
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncTimeout(timeout))
	if err != nil {
		return nil, fmt.Errorf("pump: %w", err)
	}
	stream := OutboxStream
	if plane == Event {
		stream = OutboxEventsStream
	}
	return &Pump{plane: plane, stream: stream, js: js, link: link, pace: newPace(metrics.take.WithLabelValues(string(plane))), metrics: metrics, log: log}, nil
}

// Start pumps until ctx ends and then returns nil.
func (p *Pump) Start(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.watchDepth(gctx) })
	g.Go(func() error { return p.run(gctx) })
	return g.Wait()
}

func (p *Pump) run(ctx context.Context) error {
	retry := newRetry()
	for ctx.Err() == nil {
		up, changed := p.link.State()
		if !up {
			select {
			case <-ctx.Done():
			case <-changed:
				retry = newRetry()
			}
			continue
		}
		moved, err := p.move(ctx, changed)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // we were asked to stop
		}
		if moved {
			retry = newRetry()
		}
		if err == nil {
			continue
		}
		delay := retry.Step()
		p.log.Info("pump interrupted", zap.String("class", string(p.plane)), zap.Duration("retry", delay), zap.Error(err))
		select {
		case <-ctx.Done():
		case <-changed:
			retry = newRetry()
		case <-time.After(delay):
		}
	}
	return nil
}

// move takes from the outbox while the link is up, and tells whether the hub took anything.
func (p *Pump) move(ctx context.Context, linkChanged <-chan struct{}) (moved bool, err error) {
	consumer, err := p.js.Consumer(ctx, p.stream, pumpConsumer)
	if err != nil {
		return false, fmt.Errorf("outbox: %w", err)
	}
	incoming, err := consumer.Messages(jetstream.PullMaxMessages(pumpWindow))
	if err != nil {
		return false, fmt.Errorf("outbox: %w", err)
	}
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, gctx := errgroup.WithContext(sctx)
	sent := make(chan inFlight, pumpWindow) // as many as may be in flight
	room := &room{pace: p.pace, left: make(chan struct{}, 1)}
	g.Go(func() error {
		select {
		case <-gctx.Done():
		case <-linkChanged:
			cancel()
		}
		return nil
	})
	g.Go(func() error {
		defer close(sent)
		return p.send(gctx, incoming, room, sent)
	})
	g.Go(func() error {
		for f := range sent {
			err := p.settle(gctx, f)
			room.leave(f, err == nil)
			if errors.Is(err, jetstream.ErrAsyncPublishTimeout) {
				p.pace.unanswered()
			}
			if err != nil {
				return err
			}
			moved = true
		}
		return nil
	})
	err = g.Wait()
	giveBack(incoming, sent)
	if !errors.Is(err, context.Canceled) {
		return moved, err
	}
	return moved, nil
}

// giveBack ends the reading of an outbox and has what was read and not settled offered again at once: else it would wait for
// ackWait, as the outbox cannot know that nobody works on it.
func giveBack(incoming jetstream.MessagesContext, sent <-chan inFlight) {
	var back []jetstream.Msg
	for f := range sent {
		back = append(back, f.msg)
	}
	incoming.Drain()
	for {
		msg, err := incoming.Next(jetstream.NextMaxWait(backTimeout))
		if err != nil {
			break // there is no more
		}
		back = append(back, msg)
	}
	// Not before: what is given back is offered to whoever asks, and until here that was incoming.
	for _, msg := range back {
		_ = msg.Nak() // else it comes a little later
	}
}

// inFlight is a report between the outbox and the hub.
type inFlight struct {
	msg jetstream.Msg
	ack jetstream.PubAckFuture
	// size is what it takes on the link, queue what was on its way when it had been sent, itself included, and at is when.
	size, queue int
	at          time.Time
}

func (p *Pump) send(ctx context.Context, incoming jetstream.MessagesContext, room *room, sent chan<- inFlight) error {
	for {
		msg, err := incoming.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		meta, err := msg.Metadata()
		if err != nil {
			return errors.Join(fmt.Errorf("outbox: %w", err), msg.Nak())
		}
		crash.At("pump.taken")
		out := &nats.Msg{Subject: strings.TrimPrefix(msg.Subject(), outboxPrefix), Data: msg.Data(), Header: nats.Header{}}
		maps.Copy(out.Header, msg.Headers())
		out.Header[headerOrder] = []string{fmt.Sprint(meta.Sequence.Stream)}
		id := out.Header.Get(headerStore) + "/" + p.stream + "/" + out.Header.Get(headerOrder)
		f, err := room.enter(ctx, out.Size())
		if err != nil {
			return errors.Join(err, msg.Nak())
		}
		// No retry of the library's: it would come after what was sent meanwhile, and an older state would end on top.
		ack, err := p.js.PublishMsgAsync(out, jetstream.WithMsgID(id), jetstream.WithRetryAttempts(0))
		if err != nil {
			return errors.Join(fmt.Errorf("send to the hub: %w", err), msg.Nak())
		}
		crash.At("pump.sent")
		f.msg, f.ack = msg, ack
		select {
		case sent <- f:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), msg.Nak())
		}
	}
}

// settle waits for the hub's ack and removes the report from the outbox. What was not acked is offered again at once.
func (p *Pump) settle(ctx context.Context, f inFlight) error {
	select {
	case <-f.ack.Ok():
		crash.At("pump.acked")
		if err := f.msg.Ack(); err != nil {
			return fmt.Errorf("outbox: %w", err)
		}
		crash.At("pump.removed")
		p.metrics.published.WithLabelValues(string(p.plane), f.msg.Headers().Get(headerOp)).Inc()
		return nil
	case err := <-f.ack.Err():
		return errors.Join(fmt.Errorf("the hub did not take a report: %w", err), f.msg.Nak())
	case <-ctx.Done():
		return errors.Join(ctx.Err(), f.msg.Nak())
	}
}

// watchDepth keeps the metrics of what waits.
func (p *Pump) watchDepth(ctx context.Context) error {
	ticker := time.NewTicker(depthPeriod)
	defer ticker.Stop()
	for {
		if depth, oldest, err := p.depth(ctx); err == nil {
			p.waiting.Store(depth)
			p.metrics.outboxDepth.WithLabelValues(string(p.plane)).Set(float64(depth))
			p.metrics.outboxAge.WithLabelValues(string(p.plane)).Set(oldest.Seconds())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// depth returns how many reports wait and for how long the oldest has.
func (p *Pump) depth(ctx context.Context) (messages uint64, oldest time.Duration, err error) {
	stream, err := p.js.Stream(ctx, p.stream)
	if err != nil {
		return 0, 0, fmt.Errorf("outbox: %w", err)
	}
	state := stream.CachedInfo().State
	if state.Msgs > 0 {
		oldest = max(0, time.Since(state.FirstTime))
	}
	return state.Msgs, oldest, nil
}
