package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/devicetwin/broker/access"
	"github.com/frond-edge/frond/devicetwin/broker/inbound"
)

// received is one message, or the report of a mapper, with what the broker has to do after it is handled.
type received struct {
	message Message
	// ack and expire are nil for QoS 0 and for reports, expire for a peer's messages.
	ack    func() error
	expire func() bool
	// report is nil for messages.
	report *report
}

// receiveStored passes on the messages of QoS 1 and 2 in their order.
func receiveStored(ctx context.Context, in *inbound.Queue, out chan<- received) error {
	for {
		m, err := in.Next(ctx)
		if err != nil {
			return err
		}
		r := received{message: Message{Topic: m.Topic, Payload: m.Payload, Received: devicetwin.Reception{Time: m.Received}}, ack: m.Ack, expire: m.Expire}
		select {
		case out <- r:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// receiveUnstored passes on the messages of QoS 0. Those of QoS 1 and 2 pass here, too, and come with receiveStored.
func receiveUnstored(ctx context.Context, in <-chan *nats.Msg, out chan<- received) error {
	for {
		select {
		case m := <-in:
			if m.Header.Get(qosHeader) != "0" {
				continue
			}
			select {
			case out <- received{message: Message{Topic: access.TopicOf(m.Subject), Payload: m.Data, Received: devicetwin.Reception{Time: time.Now()}}}:
			case <-ctx.Done():
				return ctx.Err()
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// handle collects what is there into batches, and acknowledges each batch after it is answered. It also makes the changes of Devices.
func (s *Server) handle(ctx context.Context, in <-chan received) error {
	var due <-chan time.Time // when twins of class flow are stored
	defer s.commitLast(ctx)
	for {
		var batch []received
		first, reports := in, s.reports
		if !s.open.Load() {
			first, reports = nil, nil // only changes of Devices
		}
		select {
		case r := <-first:
			batch = append(batch, r)
		case r := <-reports:
			batch = append(batch, r)
		case c := <-s.changes:
			c.done <- c.apply(ctx)
			continue
		case <-due:
			due = nil
			s.bridge.commitFlow(ctx)
			continue
		case <-ctx.Done():
			return ctx.Err()
		}
		batch = slices.DeleteFunc(s.fill(batch, in), func(r received) bool { return r.expire != nil && r.expire() })
		if err := s.bridge.handleBatch(ctx, batch); err != nil {
			return err
		}
		if err := acknowledge(batch); err != nil {
			return err
		}
		if s.bridge.uncommitted && due == nil {
			due = time.After(flowDelay)
		}
	}
}

// commitLast stores what was answered before it was stored, when ctx has ended.
func (s *Server) commitLast(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	if s.bridge.uncommitted {
		s.bridge.commitFlow(ctx)
	}
}

// fill adds to a batch what is there.
func (s *Server) fill(batch []received, in <-chan received) []received {
	for len(batch) < maxBatch {
		select {
		case r := <-in:
			batch = append(batch, r)
		case r := <-s.reports:
			batch = append(batch, r)
		default:
			return batch
		}
	}
	return batch
}

// acknowledge answers the broker, which then sends the PUBACKs. A client whose PUBACK is lost sends the message again.
func acknowledge(batch []received) error {
	for _, r := range batch {
		if r.ack == nil {
			continue
		}
		if err := r.ack(); err != nil {
			return fmt.Errorf("acknowledge messages of devices: %w", err)
		}
	}
	return nil
}

// countOverflow is nats.go's error handler. It is called for the first message of several that are dropped.
func (s *Server) countOverflow(_ *nats.Conn, _ *nats.Subscription, err error) {
	if errors.Is(err, nats.ErrSlowConsumer) {
		s.metrics.overflow.Inc()
	}
	s.log.Warn("the connection to the MQTT broker", zap.Error(err))
}
