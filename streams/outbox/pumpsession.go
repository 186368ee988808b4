package outbox

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

	"github.com/frond-edge/frond/internal/failpoint"
	"github.com/frond-edge/frond/streams/chunk"
	"github.com/frond-edge/frond/streams/internal/envelope"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

// outboxProgressPeriod is the period of progress acks to the outbox for large reports in work, well below ackWait.
const outboxProgressPeriod = 5 * time.Second

// inFlightReport is a report between the outbox and the hub.
type inFlightReport struct {
	msg Report
	ack jetstream.PubAckFuture
	// size is its size on the link, queuedBytes the bytes in flight after it was sent, itself included, and sentAt is when.
	size, queuedBytes int
	sentAt            time.Time
}

// pumpSession is the work of a pump over one link.
type pumpSession struct {
	pump     *Pump
	incoming Reader
	window   *sendWindow
	// fromOutbox receives reports from the outbox. toUpload passes large ones to uploadPayloads; they return through uploaded when their
	// parts are in the hub.
	fromOutbox         chan Report
	toUpload, uploaded chan *chunkedReport
	// inFlight are the reports that wait for the hub's ack.
	inFlight chan inFlightReport
	// pendingUploads are, by subject, the reports that uploadPayloads handles now or later; only sendLoop uses it.
	pendingUploads map[string]*chunkedReport
	ackedAny       bool // only awaitAcks uses it
}

// runSession moves reports from the outbox while the link is up, and reports whether the hub took any.
func (p *Pump) runSession(ctx context.Context, linkChanged <-chan struct{}) (moved bool, err error) {
	incoming, err := p.source.Open(ctx)
	if err != nil {
		return false, fmt.Errorf("outbox: %w", err)
	}
	resendLastParts(p.uploadedParts)
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, gctx := errgroup.WithContext(sctx)
	s := &pumpSession{
		pump: p, incoming: incoming, window: &sendWindow{bandwidth: p.bandwidth, released: make(chan struct{}, 1)}, // a token for a waiter
		fromOutbox: make(chan Report), toUpload: make(chan *chunkedReport), uploaded: make(chan *chunkedReport),
		inFlight:       make(chan inFlightReport, topology.PumpWindow), // limits the number of reports in flight
		pendingUploads: map[string]*chunkedReport{},
	}
	g.Go(func() error {
		select {
		case <-gctx.Done():
		case <-linkChanged:
			cancel()
		}
		return nil
	})
	g.Go(func() error { return s.readOutbox(gctx) })
	g.Go(func() error { return s.uploadPayloads(gctx) })
	g.Go(func() error {
		defer close(s.inFlight)
		return s.sendLoop(gctx)
	})
	g.Go(func() error { return s.awaitAcks(gctx) })
	err = g.Wait()
	s.releaseUnacked()
	if !errors.Is(err, context.Canceled) {
		return s.ackedAny, err
	}
	return s.ackedAny, nil
}

// releaseUnacked ends the reading of the outbox and has the reports that were read and not settled redelivered at once. Otherwise they
// would wait for ackWait, because the outbox cannot know that they are no longer handled.
func (s *pumpSession) releaseUnacked() {
	var back []Report
	for f := range s.inFlight {
		s.window.release(f, false)
		back = append(back, f.msg)
	}
	for _, parcel := range s.pendingUploads {
		back = append(back, parcel.msg)
	}
	back = append(back, s.incoming.Drain()...)
	// Not earlier: a released report is delivered to any open pull, and until here that was incoming's.
	for _, msg := range back {
		_ = msg.Nak() // otherwise it is redelivered a little later
	}
}

// readOutbox reads the outbox.
func (s *pumpSession) readOutbox(ctx context.Context) error {
	for {
		msg, err := s.incoming.Next(ctx)
		if err != nil {
			return err
		}
		failpoint.At("pump.taken")
		select {
		case s.fromOutbox <- msg:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), msg.Nak())
		}
	}
}

// sendLoop is the only publisher, so that of two states of one object the newer one is sent last, whatever their sizes.
func (s *pumpSession) sendLoop(ctx context.Context) error {
	ticker := time.NewTicker(outboxProgressPeriod)
	defer ticker.Stop()
	var queue []*chunkedReport // reports that wait for uploadPayloads
	for {
		var taken chan Report
		if len(s.pendingUploads) < maxChunkedReports {
			taken = s.fromOutbox
		}
		var boxed chan<- *chunkedReport
		var next *chunkedReport
		if len(queue) > 0 {
			boxed, next = s.toUpload, queue[0]
		}
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case msg := <-taken:
			var large *chunkedReport
			large, err = s.forwardReport(ctx, msg)
			queue = updateUploadQueue(queue, large)
		case boxed <- next:
			queue = slices.Delete(queue, 0, 1)
		case done := <-s.uploaded:
			err = s.sendUploaded(ctx, done)
		case <-ticker.C:
			for _, parcel := range s.pendingUploads {
				_ = parcel.msg.InProgress() // the report may have been replaced in the outbox meanwhile
			}
		}
		if err != nil {
			return err
		}
	}
}

// updateUploadQueue returns the queue without replaced reports, whose payloads are no longer needed, and with large appended unless it is
// nil. So the queue is no longer than pendingUploads.
func updateUploadQueue(queue []*chunkedReport, large *chunkedReport) []*chunkedReport {
	queue = slices.DeleteFunc(queue, func(p *chunkedReport) bool { return p.replaced.Load() })
	if large != nil {
		queue = append(queue, large)
	}
	return queue
}

// forwardReport sends a report, or returns it as a chunkedReport if it is larger than the link takes at a time.
func (s *pumpSession) forwardReport(ctx context.Context, msg Report) (*chunkedReport, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("outbox: %w", err), msg.Nak())
	}
	out := &nats.Msg{Subject: strings.TrimPrefix(msg.Subject(), subject.OutboxPrefix), Data: msg.Data(), Header: nats.Header{}}
	maps.Copy(out.Header, msg.Headers())
	out.Header[envelope.HeaderOrder] = []string{fmt.Sprint(meta.Sequence.Stream)}
	if older := s.pendingUploads[out.Subject]; older != nil {
		older.replaced.Store(true) // the outbox has dropped it
		delete(s.pendingUploads, out.Subject)
	}
	if out.Size() > s.pump.bandwidth.Budget() {
		large := &chunkedReport{msg: msg, out: out, id: chunk.PayloadID(out.Header.Get(envelope.HeaderOrder), out.Data)}
		s.pendingUploads[out.Subject] = large
		return large, nil
	}
	return nil, s.publishReport(ctx, msg, out)
}

// sendUploaded sends a report whose parts are in the hub.
func (s *pumpSession) sendUploaded(ctx context.Context, done *chunkedReport) error {
	if done.replaced.Load() {
		return nil
	}
	delete(s.pendingUploads, done.out.Subject)
	failpoint.At("part.last")
	return s.publishReport(ctx, done.msg, done.referenceMessage())
}

func (s *pumpSession) publishReport(ctx context.Context, msg Report, out *nats.Msg) error {
	// The time distinguishes this report from one that a copy of this disk sends under the same number: the hub would drop the later one
	// as a repetition.
	id := strings.Join([]string{out.Header.Get(envelope.HeaderStore), s.pump.stream, out.Header.Get(envelope.HeaderOrder), out.Header.Get(envelope.HeaderTime)}, "/")
	f, err := s.window.acquire(ctx, out.Size())
	if err != nil {
		return errors.Join(err, msg.Nak())
	}
	// No retry of the library: it would come after later messages, and the older state would become the last one.
	ack, err := s.pump.js.PublishMsgAsync(out, jetstream.WithMsgID(id), jetstream.WithRetryAttempts(0))
	if err != nil {
		return errors.Join(fmt.Errorf("send to the hub: %w", err), msg.Nak())
	}
	failpoint.At("pump.sent")
	f.msg, f.ack = msg, ack
	select {
	case s.inFlight <- f:
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), msg.Nak())
	}
}

// awaitAcks waits for the acks of the reports in flight, in order.
func (s *pumpSession) awaitAcks(ctx context.Context) error {
	for f := range s.inFlight {
		err := s.pump.awaitAck(ctx, f)
		s.window.release(f, err == nil)
		if errors.Is(err, jetstream.ErrAsyncPublishTimeout) {
			s.pump.bandwidth.ObserveTimeout()
		}
		if err != nil {
			return err
		}
		s.ackedAny = true
	}
	return nil
}

// awaitAck waits for the hub's ack and removes the report from the outbox. A report without an ack is redelivered at once.
func (p *Pump) awaitAck(ctx context.Context, f inFlightReport) error {
	select {
	case <-f.ack.Ok():
		failpoint.At("pump.acked")
		if err := f.msg.Ack(); err != nil {
			return fmt.Errorf("outbox: %w", err)
		}
		failpoint.At("pump.removed")
		p.metrics.Published.WithLabelValues(string(p.plane), f.msg.Headers().Get(envelope.HeaderOp)).Inc()
		return nil
	case err := <-f.ack.Err():
		return errors.Join(fmt.Errorf("the hub did not take a report: %w", err), f.msg.Nak())
	case <-ctx.Done():
		return errors.Join(ctx.Err(), f.msg.Nak())
	}
}
