package deliver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/failpoint"
	"github.com/frond-edge/frond/streams/internal/envelope"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

const (

	// pullOverhead is the size that the server counts for a message besides its payload: subjects and headers.
	pullOverhead = 4 << 10
	// infoTimeout bounds the request for the consumer's state: the consumer was just created, so there is a leader to answer.
	infoTimeout = 5 * time.Second
	// pullStatusRoom is channel room for status messages of a pull, besides its messages.
	pullStatusRoom = 64
)

// errTooLarge ends a session: the next message alone exceeds the link budget. An attach lists it without its payload.
var errTooLarge = errors.New("the next message is larger than what the link takes at a time")

// pullMessages watches: it receives the messages of the node's consumer, in order and without a gap, until a fault.
func (d *Delivery) pullMessages(ctx context.Context, attached wire.AttachReply) error {
	info, err := d.consumerInfo(ctx)
	if err != nil {
		return fmt.Errorf("consumer %s: %w", attached.Consumer, err)
	}
	if start := info.Config.OptStartSeq; start > d.saver.current().reached+1 {
		return fmt.Errorf("consumer %s starts at %d, made for another attach", attached.Consumer, start)
	}
	p := &pullSession{delivery: d, inbox: d.nc.NewInbox(), window: attached.Window}
	p.subject = subject.ConsumerSubject(d.node, "next")
	if info.Cluster != nil {
		p.consumerServer = info.Cluster.Leader
	}
	incoming := make(chan *nats.Msg, attached.Window+pullStatusRoom) // the server sends no more than the window before an ack
	sub, err := d.nc.ChanSubscribe(p.inbox, incoming)
	if err != nil {
		return fmt.Errorf("pull from %s: %w", attached.Consumer, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone; it ends the open pull, too
	if err := p.receiveLoop(ctx, incoming); err != nil {
		return fmt.Errorf("pull from %s: %w", attached.Consumer, err)
	}
	return nil
}

// consumerInfo requests the state of the node's consumer from the hub.
func (d *Delivery) consumerInfo(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	msg, err := d.nc.RequestWithContext(ctx, subject.ConsumerSubject(d.node, "info"), nil)
	if err != nil {
		return nil, err
	}
	var reply struct {
		jetstream.ConsumerInfo
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(msg.Data, &reply); err != nil {
		return nil, fmt.Errorf("answer: %w", err)
	}
	if reply.Error != nil {
		return nil, reply.Error
	}
	return &reply.ConsumerInfo, nil
}

// ackMessage acks a message that is on disk to the node's consumer. The message's reply subject names the delivery, in a form that is
// valid in the cell only.
func (d *Delivery) ackMessage(msg *nats.Msg) error {
	where, ok := subject.CutAck(msg.Reply, d.node)
	if !ok {
		return fmt.Errorf("no consumer of this node delivered it: %s", envelope.SanitizeText(msg.Reply))
	}
	return d.nc.Publish(subject.ConsumerSubject(d.node, "ack."+where), []byte("+ACK"))
}

// receiveLoop receives messages and saves them.
func (p *pullSession) receiveLoop(ctx context.Context, incoming <-chan *nats.Msg) error {
	quiet := time.NewTimer(2 * topology.PullHeartbeat)
	defer quiet.Stop()
	next := uint64(1)
	for {
		if err := p.requestMore(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case server := <-p.delivery.deadServers:
			if server == p.consumerServer {
				return errServerDied
			}
		case <-quiet.C:
			return jetstream.ErrNoHeartbeat
		case first := <-incoming:
			batch, odd := p.splitStatus(drainBatch(first, incoming))
			var err error
			if next, err = p.delivery.saveAndAck(ctx, batch, next); err != nil {
				return err
			}
			if odd != nil {
				return odd
			}
			quiet.Reset(2 * topology.PullHeartbeat)
		}
	}
}

// pullSession is the one open pull of a session. Its budget is in bytes, so that no more is in flight to the node than the link carries in
// a moment.
type pullSession struct {
	delivery *Delivery
	// subject requests the next messages; consumerServer is the hub server that the consumer lives on.
	subject, inbox, consumerServer string
	window                         int
	// budget is the number of bytes requested; bytesLeft of them, and messagesLeft, are still to come. 0: no pull is open.
	budget, bytesLeft, messagesLeft int
	// firstAt is when the first message of the pull arrived, bytesSinceFirst the bytes received after it.
	firstAt         time.Time
	bytesSinceFirst int
}

// pullRequest is the JetStream request for next messages.
type pullRequest struct {
	Expires   time.Duration `json:"expires"`
	Batch     int           `json:"batch"`
	MaxBytes  int           `json:"max_bytes"`
	Heartbeat time.Duration `json:"idle_heartbeat"`
}

// requestMore opens a pull, unless one is open.
func (p *pullSession) requestMore() error {
	if p.bytesLeft > 0 && p.messagesLeft > 0 {
		return nil
	}
	p.budget = p.delivery.bandwidth.Budget() + pullOverhead
	p.bytesLeft, p.messagesLeft, p.firstAt, p.bytesSinceFirst = p.budget, p.window, time.Time{}, 0
	body, err := json.Marshal(pullRequest{Expires: topology.PullExpiry, Batch: p.messagesLeft, MaxBytes: p.budget, Heartbeat: topology.PullHeartbeat})
	if err != nil {
		return err
	}
	return p.delivery.nc.PublishRequest(p.subject, p.inbox, body)
}

// splitStatus separates messages from the server's status messages about the pull. A status that ends the session takes effect after the
// messages before it.
func (p *pullSession) splitStatus(came []*nats.Msg) (messages []*nats.Msg, odd error) {
	for _, msg := range came {
		if msg.Reply != "" { // the subject of its ack
			p.countMessage(msg)
			messages = append(messages, msg)
			continue
		}
		if err := p.handleStatus(msg.Header); err != nil {
			return messages, err
		}
	}
	return messages, nil
}

// countMessage subtracts a message from the budget as the server counts it.
func (p *pullSession) countMessage(msg *nats.Msg) {
	size := msg.Size()
	p.bytesLeft -= size
	p.messagesLeft--
	if p.firstAt.IsZero() {
		p.firstAt = time.Now()
		return
	}
	p.bytesSinceFirst += size
	if p.bytesSinceFirst >= p.budget/2 {
		p.delivery.bandwidth.ObserveFlow(p.bytesSinceFirst, time.Since(p.firstAt))
	}
}

// handleStatus handles a status message of the open pull.
func (p *pullSession) handleStatus(header nats.Header) error {
	const heartbeat, nothing, expired, conflict = "100", "404", "408", "409"
	status, description := header.Get("Status"), header.Get("Description")
	switch {
	case status == heartbeat:
		return nil
	case status == nothing, status == expired:
		p.bytesLeft = 0
		return nil
	case status == conflict && strings.Contains(description, "MaxBytes"):
		whole := header.Get("Nats-Pending-Bytes") == fmt.Sprint(p.budget)
		p.bytesLeft = 0
		if whole {
			return errTooLarge
		}
		return nil
	case status == conflict && strings.Contains(description, "Batch Completed"):
		return nil // the status of a pull that delivered all its messages but not all its bytes; another pull may be open by now
	default:
		return fmt.Errorf("status %s %s", status, description)
	}
}

// drainBatch collects the messages that have already arrived, so that one sync to disk serves many.
func drainBatch(first *nats.Msg, incoming <-chan *nats.Msg) []*nats.Msg {
	batch := []*nats.Msg{first}
	for {
		select {
		case msg := <-incoming:
			batch = append(batch, msg)
		default:
			return batch
		}
	}
}

// saveAndAck saves a batch and acks it. next is the consumer sequence that must come first; a gap means that a delivery was lost on the
// way, or that the consumer was created anew, and the node attaches again.
func (d *Delivery) saveAndAck(ctx context.Context, batch []*nats.Msg, next uint64) (uint64, error) {
	if len(batch) == 0 {
		return next, nil
	}
	h := deliveryBatch{messages: make([]wire.Message, 0, len(batch)), sequence: d.saver.current().reached}
	for _, msg := range batch {
		d.metrics.Delivered.Inc()
		meta, err := msg.Metadata()
		if err != nil {
			return next, fmt.Errorf("delivery without coordinates: %w", err)
		}
		if meta.Sequence.Consumer != next {
			return next, fmt.Errorf("delivery %d came where %d was due", meta.Sequence.Consumer, next)
		}
		next++
		if meta.Sequence.Stream <= h.sequence {
			d.metrics.Ignored.Inc()
			continue
		}
		h.sequence = meta.Sequence.Stream
		m, err := d.codec.Decode(msg.Subject, msg.Header, msg.Data)
		if err != nil {
			if err := d.deadLetters.Put(ctx, subject.Desired, msg.Subject, msg.Header, msg.Data, err); err != nil {
				return next, err
			}
			m = wire.Message{Node: d.node, Key: m.Key}
		}
		m.Sequence = h.sequence
		if m.Key != wire.SnapshotMarker() {
			h.messages = append(h.messages, m)
		}
	}
	failpoint.At("deliver.pulled")
	if err := d.saver.saveBatch(ctx, h); err != nil {
		return next, err
	}
	failpoint.At("deliver.saved")
	if d.cfg.BeforeAck != nil {
		d.cfg.BeforeAck(d.saver.store.Cursor().Sequence)
	}
	for _, msg := range batch {
		if err := d.ackMessage(msg); err != nil {
			return next, fmt.Errorf("ack: %w", err)
		}
		d.metrics.Acked.Inc()
	}
	failpoint.At("deliver.acked")
	return next, nil
}
