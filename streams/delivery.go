package streams

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/crash"
)

const (
	// pullHeartbeat finds a consumer that died with its server: the library reports it after two missing ones. Each is some
	// 100 bytes, so 3 s cost an idle link 3 MB a day.
	pullHeartbeat = 3 * time.Second
	// pullExpiry is how long one pull stays open.
	pullExpiry = 30 * time.Second
)

// Store is where a node keeps its desired state. A method that returned nil has synced to disk.
type Store interface {
	Cursor() wire.Cursor
	// Apply saves messages in the given order, then moves the cursor to sequence. What is not newer than the cursor is
	// ignored.
	Apply(ctx context.Context, messages []wire.Message, sequence uint64) error
	// Replace saves a full snapshot: every desired object that is not in it is deleted, and the cursor starts anew in
	// the given stream epoch. A message without operation keeps the object that the store has.
	Replace(ctx context.Context, messages []wire.Message, streamEpoch string, sequence uint64) error
}

// Link tells whether the hub is reachable.
type Link interface {
	// State returns the present state and a channel that closes when it changes.
	State() (up bool, changed <-chan struct{})
}

// Delivery brings the desired state of one node into its store: attach, then pull, save, sync, ack.
type Delivery struct {
	node    string
	nc      *nats.Conn
	js      jetstream.JetStream
	store   Store
	link    Link
	codec   *codec
	dead    *deadLetters
	metrics *Metrics
	log     *zap.Logger
	// instance is told at each attach; first is when the first one succeeded, nil before.
	instance string
	first    atomic.Pointer[time.Time]
	// resync, full with one token, asks for everything anew.
	resync chan struct{}
}

// NewDelivery makes the delivery of a node over its own in-process connection.
func NewDelivery(node string, nc *nats.Conn, store Store, link Link, metrics *Metrics, log *zap.Logger) (*Delivery, error) {
	js, err := jetstream.NewWithDomain(nc, HubDomain)
	if err != nil {
		return nil, fmt.Errorf("delivery: %w", err)
	}
	codec, err := newCodec()
	if err != nil {
		return nil, err
	}
	return &Delivery{
		node: node, nc: nc, js: js, store: store, link: link, codec: codec, metrics: metrics, log: log,
		instance: rand.Text(), resync: make(chan struct{}, 1), // one waiting wish is as good as many
		dead: &deadLetters{js: js, from: node, metrics: metrics, log: log},
	}, nil
}

// Start delivers until ctx ends and then returns nil. Every fault ends in a new attach from the store's cursor, so
// nothing it does has to be remembered.
func (d *Delivery) Start(ctx context.Context) error {
	retry := newRetry()
	everything := false
	for ctx.Err() == nil {
		up, changed := d.link.State()
		if !up {
			select {
			case <-ctx.Done():
			case <-changed:
				retry = newRetry()
			}
			continue
		}
		began := time.Now()
		everything = d.asked() || everything
		err := d.session(ctx, changed, &everything)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // we were asked to stop
		}
		if time.Since(began) > settled {
			retry = newRetry()
		}
		delay := retry.Step()
		d.log.Info("delivery interrupted", zap.Duration("retry", delay), zap.Error(err))
		select {
		case <-ctx.Done():
		case <-changed:
			retry = newRetry()
		case <-time.After(delay):
		}
	}
	return nil
}

// settled is how long a session must have lasted for the next fault to be a new one.
const settled = 30 * time.Second

// newRetry is the pace of attempts while the link is up: quick at first, as most faults are a leader election.
func newRetry() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 7, Cap: 10 * time.Second}
}

// attach lists: it brings the store to the snapshot's end and returns the last page.
func (d *Delivery) attach(ctx context.Context, everything bool) (wire.AttachReply, error) {
	request := wire.AttachRequest{Cursor: d.store.Cursor(), Full: everything, Instance: d.instance}
	var first *wire.AttachReply
	var full []wire.Message
	marked, seen := false, map[string]struct{}{}
	for {
		reply, err := d.page(ctx, request)
		if err != nil {
			return reply, err
		}
		if first == nil {
			first = &reply
		}
		if reply.StreamEpoch != first.StreamEpoch || reply.Full != first.Full {
			return reply, errors.New("the stream began a new life between two pages")
		}
		crash.At("attach.answered")
		messages, held, err := d.decodePage(ctx, reply)
		if err != nil {
			return reply, err
		}
		marked = marked || held
		sequence := reply.UpTo
		if reply.Continue != 0 {
			sequence = reply.Continue - 1
		}
		if reply.Full {
			full = append(full, messages...)
		} else if err := d.apply(ctx, messages, sequence); err != nil {
			return reply, err
		}
		for _, object := range reply.Objects {
			seen[object.Subject] = struct{}{}
		}
		if reply.Continue != 0 {
			request.Continue, request.UpTo = reply.Continue, max(request.UpTo, reply.UpTo)
			continue
		}
		if reply.Full {
			if err := d.replace(ctx, reply, full, len(seen), marked); err != nil {
				return reply, err
			}
		}
		d.log.Info("attached", zap.Bool("full", reply.Full), zap.Uint64("seq", reply.UpTo))
		return reply, nil
	}
}

// replace saves a full snapshot that holds all it must.
func (d *Delivery) replace(ctx context.Context, last wire.AttachReply, full []wire.Message, subjects int, marked bool) error {
	switch {
	case subjects < last.Subjects:
		return fmt.Errorf("the snapshot has %d objects of %d: it comes from a replica that lags behind", subjects, last.Subjects)
	case last.Marked && !marked:
		return errors.New("the snapshot comes from a replica that lags behind")
	}
	if err := d.store.Replace(ctx, full, last.StreamEpoch, last.UpTo); err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	crash.At("attach.replaced")
	d.count(full)
	return nil
}

// page asks for one page of the snapshot.
func (d *Delivery) page(ctx context.Context, request wire.AttachRequest) (wire.AttachReply, error) {
	var reply wire.AttachReply
	if err := Call(ctx, d.nc, d.node, VerbAttach, request, &reply); err != nil {
		return reply, err
	}
	if reply.Error != "" {
		return reply, fmt.Errorf("attach refused: %s", reply.Error)
	}
	return reply, nil
}

// decodePage reads a page and tells whether the snapshot marker is in it. Garbage goes to the dead letters and stays in
// the page without operation.
func (d *Delivery) decodePage(ctx context.Context, reply wire.AttachReply) (messages []wire.Message, marked bool, err error) {
	messages = make([]wire.Message, 0, len(reply.Objects))
	for _, object := range reply.Objects {
		d.metrics.delivered.Inc()
		m, err := d.codec.decode(object.Subject, object.Header, object.Data)
		if err == nil && m.Node != d.node {
			err = permanent("message of node %.120q", m.Node)
		}
		if err != nil {
			if err := d.dead.put(ctx, Desired, object.Subject, object.Header, object.Data, err); err != nil {
				return nil, false, err
			}
			m = wire.Message{Node: d.node, Key: m.Key}
		}
		m.Sequence = object.Sequence
		if m.Key == wire.SnapshotMarker() {
			marked = m.Op == wire.Apply
			continue
		}
		messages = append(messages, m)
	}
	return messages, marked, nil
}

// pull watches: it takes what the node's consumer delivers, in order and without a gap, until something is odd.
func (d *Delivery) pull(ctx context.Context, attached wire.AttachReply) error {
	consumer, err := d.js.Consumer(ctx, attached.Stream, attached.Consumer)
	if err != nil {
		return fmt.Errorf("consumer %s: %w", attached.Consumer, err)
	}
	if start := consumer.CachedInfo().Config.OptStartSeq; start > d.store.Cursor().Sequence+1 {
		return fmt.Errorf("consumer %s starts at %d, made for another attach", attached.Consumer, start)
	}
	ctx, cancel := context.WithCancel(ctx)
	incoming := make(chan jetstream.Msg, attached.Window) // the server sends no more than that before an ack
	faults := make(chan error, 1)                         // the first fault ends the session
	consuming, err := consumer.Consume(
		func(msg jetstream.Msg) {
			select {
			case incoming <- msg:
			case <-ctx.Done():
			}
		},
		jetstream.PullMaxMessages(attached.Window), jetstream.PullHeartbeat(pullHeartbeat), jetstream.PullExpiry(pullExpiry),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			select {
			case faults <- err:
			default:
			}
		}))
	if err != nil {
		cancel()
		return fmt.Errorf("pull from %s: %w", attached.Consumer, err)
	}
	defer func() {
		cancel() // a callback that waits for room ends with it
		consuming.Stop()
		<-consuming.Closed()
	}()
	next := uint64(1)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-faults:
			return fmt.Errorf("pull from %s: %w", attached.Consumer, err)
		case first := <-incoming:
			if next, err = d.take(ctx, gather(first, incoming), next); err != nil {
				return err
			}
		}
	}
}

// gather takes what has already arrived, so that one sync to disk serves many messages.
func gather(first jetstream.Msg, incoming <-chan jetstream.Msg) []jetstream.Msg {
	batch := []jetstream.Msg{first}
	for {
		select {
		case msg := <-incoming:
			batch = append(batch, msg)
		default:
			return batch
		}
	}
}

// take saves a batch and acks it. next is the consumer sequence that must come first; a gap means that a delivery was
// lost on the way, or that the consumer was made anew, and the node attaches again.
func (d *Delivery) take(ctx context.Context, batch []jetstream.Msg, next uint64) (uint64, error) {
	messages := make([]wire.Message, 0, len(batch))
	last := d.store.Cursor().Sequence
	for _, msg := range batch {
		d.metrics.delivered.Inc()
		meta, err := msg.Metadata()
		if err != nil {
			return next, fmt.Errorf("delivery without coordinates: %w", err)
		}
		if meta.Sequence.Consumer != next {
			return next, fmt.Errorf("delivery %d came where %d was due", meta.Sequence.Consumer, next)
		}
		next++
		if meta.Sequence.Stream <= last {
			d.metrics.ignored.Inc()
			continue
		}
		last = meta.Sequence.Stream
		m, err := d.codec.decode(msg.Subject(), msg.Headers(), msg.Data())
		if err != nil {
			if err := d.dead.put(ctx, Desired, msg.Subject(), msg.Headers(), msg.Data(), err); err != nil {
				return next, err
			}
			continue
		}
		m.Sequence = last
		if m.Key != wire.SnapshotMarker() {
			messages = append(messages, m)
		}
	}
	crash.At("deliver.pulled")
	if err := d.apply(ctx, messages, last); err != nil {
		return next, err
	}
	crash.At("deliver.saved")
	observeAck(d.store, last)
	for _, msg := range batch {
		if err := msg.Ack(); err != nil {
			return next, fmt.Errorf("ack: %w", err)
		}
		d.metrics.acked.Inc()
	}
	crash.At("deliver.acked")
	return next, nil
}

func (d *Delivery) apply(ctx context.Context, messages []wire.Message, sequence uint64) error {
	if err := d.store.Apply(ctx, messages, sequence); err != nil {
		return fmt.Errorf("save: %w", err)
	}
	d.count(messages)
	return nil
}

// count observes how long messages that are now on disk took.
func (d *Delivery) count(messages []wire.Message) {
	now := time.Now()
	for _, m := range messages {
		if !m.Time.IsZero() {
			d.metrics.latency.Observe(max(0, now.Sub(m.Time).Seconds()))
		}
	}
}
