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

	layout subject.Layout

	mu      sync.Mutex
	streams map[string]*streamLife // guarded by mu; the streams of desired state that were seen
}

// streamLife is what was observed of one stream.
type streamLife struct {
	epoch           string
	highestSequence uint64 // the highest sequence of this life
	regressions     int    // consecutive observations of a lower sequence
}

// NewReconciler returns the reconciler of a hub. renewed is called when a stream of desired state was lost and created again or went back,
// never at the start.
func NewReconciler(nc *nats.Conn, replicas int, layout subject.Layout, renewed func(), log *zap.Logger) (*Reconciler, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	return &Reconciler{
		js: js, topology: HubTopology(replicas, layout), layout: layout, onStreamRenewed: renewed, log: log, ready: make(chan struct{}),
		streams: map[string]*streamLife{},
	}, nil
}

// Ready closes when the topology is in place for the first time.
func (k *Reconciler) Ready() <-chan struct{} { return k.ready }

// Epoch returns the current life of the stream that holds the desired state of a node; "" until the stream was seen.
func (k *Reconciler) Epoch(node string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if life := k.streams[k.layout.DesiredStream(node)]; life != nil {
		return life.epoch
	}
	return ""
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
	for _, name := range k.layout.DesiredStreams() {
		stream, err := k.js.Stream(ctx, name)
		if err != nil {
			return fmt.Errorf("read stream %s: %w", name, err)
		}
		k.observeStream(name, StreamEpoch(stream.CachedInfo()), stream.CachedInfo().State.LastSeq)
	}
	return nil
}

// hasConsumer reports whether the topology has a consumer of a stream.
func (k *Reconciler) hasConsumer(stream string) bool {
	return slices.ContainsFunc(k.topology.Consumers, func(c Consumer) bool { return c.Stream == stream })
}

// regressionsNeeded is how many consecutive observations must be below an earlier sequence: a newly elected leader may lag.
const regressionsNeeded = 2

// observeStream records one observation of a stream. A stream whose servers' disks were put back keeps its life, but counts again from
// there.
func (k *Reconciler) observeStream(name, epoch string, last uint64) {
	k.mu.Lock()
	life := k.streams[name]
	if life == nil {
		k.streams[name] = &streamLife{epoch: epoch, highestSequence: last}
		if len(k.streams) == len(k.layout.DesiredStreams()) {
			close(k.ready)
		}
		k.mu.Unlock()
		return
	}
	lost, restored := epoch != life.epoch, false
	if lost || last >= life.highestSequence {
		*life = streamLife{epoch: epoch, highestSequence: last}
	} else if life.regressions++; life.regressions == regressionsNeeded {
		restored = true
		life.highestSequence, life.regressions = last, 0
	}
	k.mu.Unlock()
	switch {
	case lost:
		k.log.Warn("a stream of desired state was lost; publishing everything again", zap.String("stream", name))
		k.onStreamRenewed()
	case restored:
		k.log.Warn("a stream of desired state went back to an older copy; comparing everything again", zap.String("stream", name), zap.Uint64("seq", last))
		k.onStreamRenewed()
	}
}
