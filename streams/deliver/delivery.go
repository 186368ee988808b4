// Package deliver brings the desired state of one node into its store. Delivery attaches (list), pulls from the node's own consumer
// (watch), saves, and only then acks; large payloads follow in pieces.
package deliver

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

// Config configures a Delivery.
type Config struct {
	Node string
	// BeforeAck observes the sequence of each ack before it is sent; nil for none. Only the fault suite needs it.
	BeforeAck func(sequence uint64)
	// OnRedialMax is given the pause between two dials that the cloud allows at most, with each attach that tells one; nil for none.
	OnRedialMax func(longest time.Duration)
	// Codec is shared with other deliveries of the process; nil: this one makes its own.
	Codec *Codec
}

// Codec reads what the cloud sends. It may be used by any number of deliveries.
type Codec struct{ codec *envelope.Codec }

// NewCodec returns a codec.
func NewCodec() (*Codec, error) {
	codec, err := envelope.NewCodec()
	if err != nil {
		return nil, err
	}
	return &Codec{codec}, nil
}

// parts are what the parts of a delivery share.
type parts struct {
	node        string
	nc          *nats.Conn
	saver       *saver
	codec       *envelope.Codec
	deadLetters *envelope.DeadLetterStore
	bandwidth   *flow.BandwidthEstimator
	metrics     *metrics.Metrics
	log         *zap.Logger
}

// Delivery brings the desired state of one node into its store: attach, then pull, save, sync, ack.
type Delivery struct {
	parts
	cfg      Config
	link     link.Link
	attacher *attacher
	fetcher  *pieceFetcher
	// firstAttach is when the first attach succeeded, nil before.
	firstAttach atomic.Pointer[time.Time]
	// resyncRequests, full with one token, requests a full attach.
	resyncRequests chan struct{}
	// deadServers, with room for one, receives the names of dead hub servers.
	deadServers chan string
}

// NewDelivery returns the delivery of a node over its own in-process connection.
func NewDelivery(cfg Config, nc *nats.Conn, store Store, link link.Link, metrics *metrics.Metrics, log *zap.Logger) (*Delivery, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("delivery: %w", err)
	}
	if cfg.Codec == nil {
		if cfg.Codec, err = NewCodec(); err != nil {
			return nil, err
		}
	}
	d := &Delivery{
		cfg: cfg, link: link, resyncRequests: make(chan struct{}, 1), // one pending request stands for any number
		deadServers: make(chan string, 1),
		parts: parts{
			node: cfg.Node, nc: nc, saver: newSaver(store, metrics), codec: cfg.Codec.codec, metrics: metrics, log: log,
			bandwidth:   flow.NewBandwidthEstimator(metrics.LinkBudget.WithLabelValues(string(subject.Desired))),
			deadLetters: &envelope.DeadLetterStore{Js: js, Sender: cfg.Node, Metrics: metrics, Log: log},
		},
	}
	d.fetcher = &pieceFetcher{parts: d.parts, link: link, resync: d.Resync}
	d.attacher = &attacher{parts: d.parts, fetcher: d.fetcher, instance: rand.Text(), deadServers: d.deadServers}
	return d, nil
}

// Start delivers until ctx ends and then returns nil. Every fault ends in a new attach from the store's cursor, so no state needs to be
// remembered.
func (d *Delivery) Start(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error { return d.runSessions(ctx) })
	g.Go(func() error { return d.fetcher.fetchPending(ctx) })
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
		began, before := time.Now(), d.saver.current().reached
		everything = d.takeResyncRequest() || everything
		err := d.runSession(ctx, changed, &everything)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // we were asked to stop
		}
		if errors.Is(err, errServerDied) || errors.Is(err, errTooLarge) && d.saver.current().reached > before {
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

// LinkBudget returns how many bytes the link to the cloud is now estimated to take at a time.
func (d *Delivery) LinkBudget() int { return d.bandwidth.Budget() }

// IsPending reports whether a newer state of the object is being fetched, which the store does not hold yet.
func (d *Delivery) IsPending(key wire.Key) bool { return d.saver.current().pending[key] != nil }

// Identity returns a name that distinguishes this process from others of the same node, and the time since its first successful attach;
// later faults do not reset that time.
func (d *Delivery) Identity() (instance string, since time.Duration) {
	if first := d.firstAttach.Load(); first != nil {
		since = time.Since(*first)
	}
	return d.attacher.instance, since
}

// Resync starts a full attach at once: the store is compared object by object with the state in the cloud, and repaired. It does not
// block.
func (d *Delivery) Resync() {
	select {
	case d.resyncRequests <- struct{}{}:
	default:
	}
}

// ServerDied ends the current pull if its consumer lived on that hub server, so that the node attaches again at once. An attach that waits
// for a reply sends its request again, whether a hub server or a cloudcore died. ServerDied does not block. If the message is lost,
// missing heartbeats and a missing reply have the same effect some seconds later.
func (d *Delivery) ServerDied(server string) {
	select {
	case d.deadServers <- server:
	default:
	}
}

// runSession runs one attach and the pulls after it. It ends with an error, or with nil when the link changed. everything, when set,
// requests a full attach; the first successful attach clears it.
func (d *Delivery) runSession(ctx context.Context, linkChanged <-chan struct{}, everything *bool) error {
	g, gctx := errgroup.WithContext(ctx)
	done := make(chan struct{})
	full, attached := *everything, make(chan struct{})
	g.Go(func() error {
		defer close(done)
		reply, err := d.attacher.attach(gctx, full)
		if err != nil {
			return err
		}
		now := time.Now()
		d.firstAttach.CompareAndSwap(nil, &now)
		if full {
			d.takeResyncRequest() // the attach has covered requests made meanwhile
		}
		close(attached)
		if d.cfg.OnRedialMax != nil && reply.RedialMax > 0 {
			d.cfg.OnRedialMax(time.Duration(reply.RedialMax) * time.Second)
		}
		return d.pullMessages(gctx, reply)
	})
	g.Go(func() error {
		resync, listed := d.resyncRequests, attached
		if full {
			resync = nil // it is in progress; another request would only restart it
		}
		for {
			select {
			case <-linkChanged:
				return errLinkChanged
			case <-resync:
				return errResync
			case <-listed:
				listed, resync = nil, d.resyncRequests
			case <-done:
				return nil
			}
		}
	})
	err := g.Wait()
	select {
	case <-attached:
		*everything = errors.Is(err, errResync)
	default:
		*everything = full || errors.Is(err, errResync)
	}
	return err
}

// takeResyncRequest consumes a pending resync request.
func (d *Delivery) takeResyncRequest() bool {
	select {
	case <-d.resyncRequests:
		return true
	default:
		return false
	}
}

var (
	errServerDied  = errors.New("a server of the hub, or a cloudcore, is gone")
	errLinkChanged = errors.New("the link changed")
	errResync      = errors.New("the cloud requests a full resync")
)
