package topology

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/streams/subject"
)

// topologyPeriod is how often the hub's topology is checked; a stream that was deleted by hand is missing for at most that long.
const topologyPeriod = 2 * time.Second

// Reconciler keeps the hub's topology in place: it creates missing streams. It reports when the stream of desired state began a
// new life or went back to an older copy, so that its content is published again.
type Reconciler struct {
	js              jetstream.JetStream
	topology        Topology
	onStreamRenewed func()
	log             *zap.Logger
	ready           chan struct{}

	mu              sync.Mutex
	epoch           string // guarded by mu; "" until the stream was seen
	highestSequence uint64 // guarded by mu; the highest sequence of this life
	regressions     int    // consecutive observations of a lower sequence
}

// NewReconciler returns the reconciler of a hub. renewed is called when the stream was lost and created again or went back, never
// at the start.
func NewReconciler(nc *nats.Conn, topology Topology, renewed func(), log *zap.Logger) (*Reconciler, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	return &Reconciler{js: js, topology: topology, onStreamRenewed: renewed, log: log, ready: make(chan struct{})}, nil
}

// Ready closes when the topology is in place for the first time.
func (k *Reconciler) Ready() <-chan struct{} { return k.ready }

// Epoch returns the current life of the stream of desired state.
func (k *Reconciler) Epoch() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.epoch
}

// Start reconciles until ctx ends and then returns nil.
func (k *Reconciler) Start(ctx context.Context) error {
	ticker := time.NewTicker(topologyPeriod)
	defer ticker.Stop()
	ensured := false
	for {
		err := k.reconcileTopology(ctx, &ensured)
		if err != nil && ctx.Err() == nil {
			k.log.Warn("hub topology not in place", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// reconcileTopology creates missing streams and detects a new life. It requests each stream by name, which costs the hub next to nothing.
func (k *Reconciler) reconcileTopology(ctx context.Context, ensured *bool) error {
	ctx, cancel := context.WithTimeout(ctx, PublishTimeout)
	defer cancel()
	missing := !*ensured
	for _, cfg := range k.topology.Streams {
		stream, err := k.js.Stream(ctx, cfg.Name)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			missing = true
		case err != nil:
			return fmt.Errorf("read stream %s: %w", cfg.Name, err)
		case stream.CachedInfo().State.Consumers == 0 && k.hasConsumer(cfg.Name):
			missing = true // deleted by hand, possibly to be created under another random name
		}
	}
	if missing {
		if err := Ensure(ctx, k.js, k.topology); err != nil {
			return err
		}
		*ensured = true
	}
	stream, err := k.js.Stream(ctx, subject.DesiredStream)
	if err != nil {
		return fmt.Errorf("read stream %s: %w", subject.DesiredStream, err)
	}
	k.observeStream(StreamEpoch(stream.CachedInfo()), stream.CachedInfo().State.LastSeq)
	return nil
}

// hasConsumer reports whether the topology has a consumer of a stream.
func (k *Reconciler) hasConsumer(stream string) bool {
	return slices.ContainsFunc(k.topology.Consumers, func(c Consumer) bool { return c.Stream == stream })
}

// regressionsNeeded is how many consecutive observations must be below an earlier sequence: a newly elected leader may lag.
const regressionsNeeded = 2

// observeStream records one observation of the stream. A stream whose servers' disks were put back keeps its life, but counts again from
// there.
func (k *Reconciler) observeStream(epoch string, last uint64) {
	k.mu.Lock()
	before := k.epoch
	switch {
	case epoch != before || last >= k.highestSequence:
		k.epoch, k.highestSequence, k.regressions = epoch, last, 0
	default:
		k.regressions++
	}
	restored := k.regressions == regressionsNeeded
	if restored {
		k.highestSequence, k.regressions = last, 0
	}
	k.mu.Unlock()
	switch before {
	case epoch:
		if restored {
			k.log.Warn("the stream of desired state went back to an older copy; comparing everything again",
				zap.String("stream", subject.DesiredStream), zap.Uint64("seq", last))
			k.onStreamRenewed()
		}
	case "":
		close(k.ready)
	default:
		k.log.Warn("the stream of desired state was lost; publishing everything again", zap.String("stream", subject.DesiredStream))
		k.onStreamRenewed()
	}
}
