// Package deliver brings the desired state of one node into its store. Delivery attaches (list), pulls from the node's own consumer
// (watch), saves, and only then acks; large payloads follow in pieces.
package deliver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/internal/envelope"
	"github.com/frond-edge/frond/streams/internal/flow"
	"github.com/frond-edge/frond/streams/link"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
)

// Store is where a node keeps its desired state. When a method returns nil, its change is synced to disk.
type Store interface {
	Cursor() wire.Cursor
	// Apply saves messages in the given order, then moves the cursor to sequence. It ignores a message that is not newer than the cursor,
	// or than the stored message of its key. Messages beyond sequence may be among them.
	Apply(ctx context.Context, messages []wire.Message, sequence uint64) error
	// Replace saves a full snapshot: every desired object that is not in it is deleted, and the cursor starts anew in
	// the given stream epoch. A message without operation keeps the object that the store has.
	Replace(ctx context.Context, messages []wire.Message, streamEpoch string, sequence uint64) error
	// Holds reports whether the store already holds exactly the content of a message, so that its payload need not be sent again.
	Holds(m wire.Message) bool
}

// Delivery brings the desired state of one node into its store: attach, then pull, save, sync, ack.
type Delivery struct {
	node        string
	nc          *nats.Conn
	store       Store
	link        link.Link
	codec       *envelope.Codec
	deadLetters *envelope.DeadLetterStore
	metrics     *metrics.Metrics
	log         *zap.Logger
	// instance is sent with each attach; firstAttach is when the first one succeeded, nil before.
	instance    string
	firstAttach atomic.Pointer[time.Time]
	// resyncRequests, full with one token, requests a full attach.
	resyncRequests chan struct{}
	// deadServers, with room for one, receives the names of dead hub servers.
	deadServers chan string
	bandwidth   *flow.BandwidthEstimator
	// saveToken holds one token, which admits one change of the store and of progress together.
	saveToken chan struct{}
	// prefetched are the payloads that an attach fetches before it ends; only the attach in progress uses it.
	prefetched map[wire.Key]*pendingObject

	mu sync.Mutex
	// progress is the part of the state that the store's cursor does not record. Guarded by mu; changed only by the owner of saveToken.
	progress deliveryProgress
	// changed closes when progress changes; guarded by mu.
	changed chan struct{}
}

// NewDelivery returns the delivery of a node over its own in-process connection.
func NewDelivery(node string, nc *nats.Conn, store Store, link link.Link, metrics *metrics.Metrics, log *zap.Logger) (*Delivery, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("delivery: %w", err)
	}
	codec, err := envelope.NewCodec()
	if err != nil {
		return nil, err
	}
	return &Delivery{
		node: node, nc: nc, store: store, link: link, codec: codec, metrics: metrics, log: log,
		instance: rand.Text(), resyncRequests: make(chan struct{}, 1), // one pending request stands for any number
		deadServers: make(chan string, 1),
		bandwidth:   flow.NewBandwidthEstimator(metrics.LinkBudget.WithLabelValues(string(subject.Desired))), saveToken: make(chan struct{}, 1), changed: make(chan struct{}),
		deadLetters: &envelope.DeadLetterStore{Js: js, Sender: node, Metrics: metrics, Log: log},
	}, nil
}

// Start delivers until ctx ends and then returns nil. Every fault ends in a new attach from the store's cursor, so no state needs to be
// remembered.
func (d *Delivery) Start(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error { return d.runSessions(ctx) })
	g.Go(func() error { return d.fetchPending(ctx) })
	return g.Wait()
}

// runSessions attaches and pulls, session after session.
func (d *Delivery) runSessions(ctx context.Context) error {
	retry := flow.NewRetryBackoff()
	everything := false
	for ctx.Err() == nil {
		up, changed := d.link.State()
		if !up {
			select {
			case <-ctx.Done():
			case <-changed:
				retry = flow.NewRetryBackoff()
			}
			continue
		}
		began, before := time.Now(), d.currentProgress().reached
		everything = d.takeResyncRequest() || everything
		err := d.runSession(ctx, changed, &everything)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // we were asked to stop
		}
		if errors.Is(err, errServerDied) || errors.Is(err, errTooLarge) && d.currentProgress().reached > before {
			d.log.Info("attaching again at once", zap.NamedError("because", err))
			retry = flow.NewRetryBackoff()
			continue // the next attach creates another consumer, and lists large objects without their payloads
		}
		if time.Since(began) > flow.StableSession {
			retry = flow.NewRetryBackoff()
		}
		delay := retry.Step()
		d.log.Info("delivery interrupted", zap.Duration("retry", delay), zap.Error(err))
		select {
		case <-ctx.Done():
		case <-changed:
			retry = flow.NewRetryBackoff()
		case <-time.After(delay):
		}
	}
	return nil
}

// saveBatch saves a batch to disk and moves the cursor as far as it may go.
func (d *Delivery) saveBatch(ctx context.Context, h deliveryBatch) error {
	if err := d.acquireSave(ctx); err != nil {
		return err
	}
	defer d.releaseSave()
	return d.commitBatch(ctx, h)
}

// commitBatch does the work of saveBatch. The caller holds saveToken.
func (d *Delivery) commitBatch(ctx context.Context, h deliveryBatch) error {
	next := d.currentProgress().applyBatch(h)
	spoken := slices.DeleteFunc(slices.Clone(h.messages), func(m wire.Message) bool { return m.Op == "" })
	if err := d.store.Apply(ctx, spoken, next.safeCursor()); err != nil {
		return fmt.Errorf("save: %w", err)
	}
	d.setProgress(next)
	d.observeLatency(spoken)
	return nil
}

// acquireSave acquires saveToken.
func (d *Delivery) acquireSave(ctx context.Context) error {
	select {
	case d.saveToken <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *Delivery) releaseSave() { <-d.saveToken }

func (d *Delivery) currentProgress() deliveryProgress {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.progress
}

// setProgress replaces the progress. The caller holds saveToken.
func (d *Delivery) setProgress(b deliveryProgress) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.progress = b
	close(d.changed)
	d.changed = make(chan struct{})
	d.metrics.PendingObjects.Set(float64(len(b.pending)))
}

// observeLatency observes the latency of messages that are now on disk.
func (d *Delivery) observeLatency(messages []wire.Message) {
	now := time.Now()
	for _, m := range messages {
		if !m.Time.IsZero() {
			d.metrics.Latency.Observe(max(0, now.Sub(m.Time).Seconds()))
		}
	}
}

// LinkBudget returns how many bytes the link to the cloud is now estimated to take at a time.
func (d *Delivery) LinkBudget() int { return d.bandwidth.Budget() }
