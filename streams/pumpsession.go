package streams

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/internal/crash"
)

// holdPeriod is how often the outbox is told that large reports are worked on, well before ackWait is over.
const holdPeriod = 5 * time.Second

// inFlight is a report between the outbox and the hub.
type inFlight struct {
	msg jetstream.Msg
	ack jetstream.PubAckFuture
	// size is what it takes on the link, queue what was on its way when it had been sent, itself included, and at is when.
	size, queue int
	at          time.Time
}

// sending is one life of a pump, as long as the link stays.
type sending struct {
	p        *Pump
	incoming jetstream.MessagesContext
	room     *room
	// taken comes from the outbox. boxed goes to the carrier and comes back by whole, when its parts are in the hub.
	taken        chan jetstream.Msg
	boxed, whole chan *parcel
	// sent are those in flight.
	sent chan inFlight
	// last is, by subject, what the carrier works on or will; only send uses it.
	last  map[string]*parcel
	moved bool // only settle uses it
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
	proveAgain(p.sent)
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, gctx := errgroup.WithContext(sctx)
	s := &sending{
		p: p, incoming: incoming, room: &room{pace: p.pace, left: make(chan struct{}, 1)}, // a token for who waits
		taken: make(chan jetstream.Msg), boxed: make(chan *parcel), whole: make(chan *parcel),
		sent: make(chan inFlight, pumpWindow), // as many as may be in flight
		last: map[string]*parcel{},
	}
	g.Go(func() error {
		select {
		case <-gctx.Done():
		case <-linkChanged:
			cancel()
		}
		return nil
	})
	g.Go(func() error { return s.take(gctx) })
	g.Go(func() error { return s.carry(gctx) })
	g.Go(func() error {
		defer close(s.sent)
		return s.send(gctx)
	})
	g.Go(func() error { return s.settle(gctx) })
	err = g.Wait()
	s.giveBack()
	if !errors.Is(err, context.Canceled) {
		return s.moved, err
	}
	return s.moved, nil
}

// giveBack ends the reading of an outbox and has what was read and not settled offered again at once: else it would wait for
// ackWait, as the outbox cannot know that nobody works on it.
func (s *sending) giveBack() {
	var back []jetstream.Msg
	for f := range s.sent {
		back = append(back, f.msg)
	}
	for _, parcel := range s.last {
		back = append(back, parcel.msg)
	}
	s.incoming.Drain()
	for {
		msg, err := s.incoming.Next(jetstream.NextMaxWait(backTimeout))
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

// take reads the outbox.
func (s *sending) take(ctx context.Context) error {
	for {
		msg, err := s.incoming.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		crash.At("pump.taken")
		select {
		case s.taken <- msg:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), msg.Nak())
		}
	}
}

// send alone publishes, so that of two states of one object the newer comes last, whether they are large or not.
func (s *sending) send(ctx context.Context) error {
	ticker := time.NewTicker(holdPeriod)
	defer ticker.Stop()
	var queue []*parcel // that wait for the carrier
	for {
		var taken chan jetstream.Msg
		if len(s.last) < mostParcels {
			taken = s.taken
		}
		var boxed chan<- *parcel
		var next *parcel
		if len(queue) > 0 {
			boxed, next = s.boxed, queue[0]
		}
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case msg := <-taken:
			var large *parcel
			large, err = s.forward(ctx, msg)
			queue = queued(queue, large)
		case boxed <- next:
			queue = slices.Delete(queue, 0, 1)
		case done := <-s.whole:
			err = s.deliver(ctx, done)
		case <-ticker.C:
			for _, parcel := range s.last {
				_ = parcel.msg.InProgress() // replaced in the outbox meanwhile, perhaps
			}
		}
		if err != nil {
			return err
		}
	}
}

// queued is the queue without those that were replaced, whose payloads nobody needs, and with one more unless that is nil. So it
// is no longer than last.
func queued(queue []*parcel, large *parcel) []*parcel {
	queue = slices.DeleteFunc(queue, func(p *parcel) bool { return p.replaced.Load() })
	if large != nil {
		queue = append(queue, large)
	}
	return queue
}

// forward sends a report, or returns it as a parcel if it is larger than what the link takes at a time.
func (s *sending) forward(ctx context.Context, msg jetstream.Msg) (*parcel, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("outbox: %w", err), msg.Nak())
	}
	out := &nats.Msg{Subject: strings.TrimPrefix(msg.Subject(), outboxPrefix), Data: msg.Data(), Header: nats.Header{}}
	maps.Copy(out.Header, msg.Headers())
	out.Header[headerOrder] = []string{fmt.Sprint(meta.Sequence.Stream)}
	if older := s.last[out.Subject]; older != nil {
		older.replaced.Store(true) // the outbox has forgotten it
		delete(s.last, out.Subject)
	}
	if out.Size() > s.p.pace.take() {
		large := &parcel{msg: msg, out: out, id: idOfParts(out.Header.Get(headerOrder), out.Data)}
		s.last[out.Subject] = large
		return large, nil
	}
	return nil, s.publish(ctx, msg, out)
}

// deliver sends the report whose parts are in the hub.
func (s *sending) deliver(ctx context.Context, done *parcel) error {
	if done.replaced.Load() {
		return nil
	}
	delete(s.last, done.out.Subject)
	crash.At("part.last")
	return s.publish(ctx, done.msg, done.report())
}

func (s *sending) publish(ctx context.Context, msg jetstream.Msg, out *nats.Msg) error {
	// The time tells it from what a copy of this disk says under the same number: the hub would take the later one for a repetition.
	id := strings.Join([]string{out.Header.Get(headerStore), s.p.stream, out.Header.Get(headerOrder), out.Header.Get(headerTime)}, "/")
	f, err := s.room.enter(ctx, out.Size())
	if err != nil {
		return errors.Join(err, msg.Nak())
	}
	// No retry of the library's: it would come after what was sent meanwhile, and an older state would end on top.
	ack, err := s.p.js.PublishMsgAsync(out, jetstream.WithMsgID(id), jetstream.WithRetryAttempts(0))
	if err != nil {
		return errors.Join(fmt.Errorf("send to the hub: %w", err), msg.Nak())
	}
	crash.At("pump.sent")
	f.msg, f.ack = msg, ack
	select {
	case s.sent <- f:
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), msg.Nak())
	}
}

// settle waits for what is in flight, in order.
func (s *sending) settle(ctx context.Context) error {
	for f := range s.sent {
		err := s.p.settle(ctx, f)
		s.room.leave(f, err == nil)
		if errors.Is(err, jetstream.ErrAsyncPublishTimeout) {
			s.p.pace.unanswered()
		}
		if err != nil {
			return err
		}
		s.moved = true
	}
	return nil
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
