package desired

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/util/workqueue"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/desired/decision"
	"github.com/frond-edge/frond/controllers/desired/dispatch"
	"github.com/frond-edge/frond/controllers/desired/enginemetrics"
	"github.com/frond-edge/frond/controllers/desired/grants"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/objectcache"
	"github.com/frond-edge/frond/controllers/desired/payload"
	"github.com/frond-edge/frond/controllers/desired/published"
	"github.com/frond-edge/frond/controllers/desired/source"
	"github.com/frond-edge/frond/controllers/desired/topology"
	"github.com/frond-edge/frond/internal/failpoint"
)

// errLeaseExpired is returned while this replica cannot tell whether it still owns its nodes.
var errLeaseExpired = errors.New("this replica was not heard of lately, another may own the node")

// errUnpublishable is returned for an object that can never be published. It was logged and is not retried.
var errUnpublishable = errors.New("object can never be published")

// errStaleCache is returned when another replica has published a state that this replica's cache has not received yet,
// perhaps after an apiserver's restart. A decision now would revert the node to an older state.
var errStaleCache = errors.New("the cache is behind what the stream holds")

// errAwaitsServices is returned for a pod that the node does not have yet, while the Services of its namespace are not published.
var errAwaitsServices = errors.New("the Services of the pod's namespace are not published yet")

// errDuplicate is returned when the stream took a new message for a duplicate of an old one.
var errDuplicate = errors.New("stream stored nothing, it took the message for a repetition")

// reconciler makes the stream hold the desired state of each object at each node that the queue names.
type reconciler struct {
	cfg       *Config
	nodes     decisions
	objects   *objectcache.Cache
	deletions deletions
	publisher Publisher
	owner     Ownership
	metrics   *enginemetrics.Counters
	log       *zap.Logger
	source    *source.Source
	// waitBackoff is the backoff of items that wait until this replica's lease is valid again; it has its own lock.
	waitBackoff workqueue.TypedRateLimiter[dispatch.Item]
}

// ProcessItem implements dispatch.Processor.
func (r *reconciler) ProcessItem(ctx context.Context, p controllers.Priority, it dispatch.Item) error {
	err := r.reconcileItem(ctx, p, it)
	switch {
	case err == nil:
		r.waitBackoff.Forget(it)
	case ctx.Err() != nil:
	case errors.Is(err, errLeaseExpired), errors.Is(err, errStaleCache), errors.Is(err, errAwaitsServices):
		if errors.Is(err, errStaleCache) {
			r.metrics.StaleCache.Inc()
		}
		r.nodes.work.AddAfter(p, it, r.waitBackoff.When(it))
		return nil
	case errors.Is(err, wire.ErrConflict):
		r.metrics.Conflicts.Inc()
		r.nodes.work.RetryAfterLoad(it, p) // reload what the stream holds; that enqueues the object again
		return nil
	default:
		r.metrics.Errors.Inc()
		r.log.Warn("not published, trying again",
			zap.String("node", it.Node.Name()), zap.String("object", it.Key.Human()), zap.Error(err))
		if !errors.Is(err, wire.ErrPermanent) {
			r.nodes.work.RetryAfterLoad(it, p) // it may have been stored all the same: reload what the stream holds
		}
	}
	return err
}

// LoadNode implements dispatch.Processor.
func (r *reconciler) LoadNode(ctx context.Context, n *dispatch.Node) error {
	s, term, resumed := r.nodes.beginLoad(n)
	if s == nil {
		return nil
	}
	err := r.readNode(ctx, s, term, resumed)
	if err != nil && ctx.Err() == nil && !errors.Is(err, grants.ErrNotLoaded) {
		r.metrics.Errors.Inc()
		r.log.Warn("not loaded, trying again", zap.String("node", s.name), zap.Error(err))
	}
	return err
}

// SpreadChange implements dispatch.Processor.
func (r *reconciler) SpreadChange(key wire.Key) { r.nodes.spread(key) }

// decisionAge is the maximum age of a decision when it is sent; a publish is retried for as long.
const decisionAge = 15 * time.Second

func (r *reconciler) reconcileItem(ctx context.Context, p controllers.Priority, it dispatch.Item) (err error) {
	defer recoverPanic(&err)
	s, fills := r.nodes.begin(it, p)
	if s == nil {
		return nil
	}
	// A decision made from here on is sent soon or not at all: long before a tombstone may be purged.
	ctx, cancel := context.WithTimeout(ctx, min(decisionAge, r.cfg.TombstoneAge/2))
	defer cancel()
	if it.Key == wire.SnapshotMarker() && !s.published.SnapshotComplete() {
		return nil // it is enqueued again when all keys before it are processed
	}
	now, known := s.published.BeginWork(it.Key)
	if !known {
		return nil // released meanwhile
	}
	err = r.reconcileKey(ctx, s, it.Key, now)
	switch {
	case err == nil:
		r.nodes.recordReconciled(s, it.Key, fills)
	case errors.Is(err, topology.ErrGroupUnknown): // the marker and the snapshot wait; it is enqueued again when the group is known
		return nil
	case errors.Is(err, errUnpublishable), errors.Is(err, objectcache.ErrKindNotSynced): // already logged; or enqueued again when the kind is synced
	default:
		return err
	}
	r.deletions.reevaluate(s, it.Key)
	if s.published.FinishPending(it.Key) {
		r.nodes.work.Repair(s.work, wire.SnapshotMarker())
	}
	return nil
}

func recoverPanic(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
	}
}

// readNode reads what the stream holds for a node and enqueues each object that is published or wanted.
func (r *reconciler) readNode(ctx context.Context, s *nodeState, term uint64, resumed bool) (err error) {
	defer recoverPanic(&err)
	r.metrics.Loads.Inc()
	failpoint.At("takeover.begun")
	since := s.published.BeginLoad()
	held, err := r.publisher.Held(ctx, s.name)
	if err != nil {
		return fmt.Errorf("load %s: %w", s.name, err)
	}
	failpoint.At("takeover.read")
	s.published.EndLoad(since, held, r.cfg.ClusterEpoch, term)
	r.deletions.evaluate(s, time.Now())
	return r.nodes.enqueueAll(s, held, resumed)
}

// reconcileKey makes the stream hold the desired state of one object at one node.
func (r *reconciler) reconcileKey(ctx context.Context, s *nodeState, key wire.Key, now published.View) error {
	in := decision.Input{Published: now.Record, AckedSequence: now.AckedSequence, Purgeable: time.Since(now.Record.MadeAt) >= r.cfg.TombstoneAge}
	message := wire.Message{Node: s.name, Key: key, ClusterEpoch: r.cfg.ClusterEpoch, Time: time.Now()}
	heard := r.objects.Version(kinds.Of(key)) // read before the objects, so that these are at least as new
	behind := r.source.Stale(&s.published, kinds.Of(key), heard)
	var err error
	if in.Want, in.Retain, err = r.wantedState(s, key, &message); err != nil {
		return err
	}
	if behind {
		return errStaleCache
	}
	switch decision.Decide(in) {
	case decision.Publish:
		if in.Want.ForceDeleted && now.Record.UID == in.Want.UID {
			if !r.deletions.allowed(s, key, now.Record) {
				return nil
			}
			message.DeletionReason = s.guard.DeletionReason(now.Record)
		}
		if published.IsPod(key) && !s.published.Holds(key) && !r.source.ServicesHeld(&s.published, key) &&
			r.waitBackoff.NumRequeues(dispatch.Item{Node: s.work, Key: key}) < source.MaxServiceWaits {
			return errAwaitsServices
		}
		if err := in.Want.Encode(); err != nil {
			return fmt.Errorf("%s: %w", key.Human(), err)
		}
		message.Op, message.Object = wire.Apply, in.Want.Object
		return r.publishMessage(ctx, s, message, now)
	case decision.Tombstone:
		if !r.deletions.allowed(s, key, now.Record) {
			return nil
		}
		message.Op, message.UID, message.DeletionReason = wire.Delete, now.Record.UID, s.guard.DeletionReason(now.Record)
		if _, err := r.objects.Get(key); errors.Is(err, objectcache.ErrNotFound) {
			message.Version = heard // a replica whose cache is older than this does not publish the object again
		}
		return r.publishMessage(ctx, s, message, now)
	case decision.Purge:
		failpoint.At("purge.decided")
		if err := r.publisher.Purge(ctx, s.name, key, now.Record.Sequence); err != nil {
			return fmt.Errorf("purge: %w", err)
		}
		failpoint.At("purge.done")
		s.published.Store(key, published.Record{}, 0)
		r.metrics.Purged.Inc()
	case decision.None:
	}
	return nil
}

// wantedState returns the desired state of an object at a node, nil for nothing, and fills in the message that would carry it.
func (r *reconciler) wantedState(s *nodeState, key wire.Key, message *wire.Message) (want *payload.Payload, keep bool, err error) {
	n, err := r.nodes.needOf(s, key)
	if err != nil {
		return nil, true, err
	}
	if n.own == nil && key == wire.SnapshotMarker() && !n.gone {
		n.own = payload.Snapshot()
	}
	if n.own != nil {
		message.Version, message.Digest = n.own.Version, n.own.Digest
		return n.own, n.keep, nil
	}
	if r.cfg.Protected.Covers(key) {
		return nil, false, nil // also for what this replica, or an older one, has published before
	}
	if !n.needed || n.gone {
		return nil, n.keep || s.published.HasMarker(key), nil
	}
	p, err := r.source.Payload(s.name, key, s.published.Holds(key))
	if errors.Is(err, objectcache.ErrNotFound) || errors.Is(err, topology.ErrNoService) {
		return nil, n.keep || errors.Is(err, topology.ErrNoService), nil
	}
	if err != nil {
		return nil, n.keep, err
	}
	message.UID, message.Version, message.Digest, message.DeletionReason = p.UID, p.Version, p.Digest, p.DeletionReason
	return p, n.keep, nil
}

// publishMessage publishes a message, expecting the last sequence that the view holds. A message that can never be
// stored is counted and dropped.
func (r *reconciler) publishMessage(ctx context.Context, s *nodeState, m wire.Message, over published.View) error {
	if !r.owner.LeaseValid() {
		return errLeaseExpired
	}
	failpoint.At("publish.decided")
	m.Acked = over.Record.KnownVersion(over.AckedSequence)
	began := time.Now()
	sequence, err := r.publisher.Publish(ctx, m, over.Record.Sequence)
	r.metrics.PublishSeconds.Observe(time.Since(began).Seconds())
	if errors.Is(err, wire.ErrPermanent) {
		r.metrics.Refused.Inc()
		r.log.Error("object can never be published, its node goes without it",
			zap.String("node", m.Node), zap.String("object", m.Key.Human()), zap.Error(err))
		return errUnpublishable
	}
	if err != nil {
		return err
	}
	failpoint.At("publish.stored")
	m.Sequence = sequence
	if !s.published.Store(m.Key, published.RecordOf(m, r.cfg.ClusterEpoch), over.TopSequence) {
		r.metrics.Duplicates.Inc()
		return fmt.Errorf("sequence %d: %w", sequence, errDuplicate)
	}
	failpoint.At("publish.noted")
	r.metrics.Published.WithLabelValues(string(m.Op), m.Key.Resource).Inc()
	r.metrics.Bytes.Add(float64(len(m.Object)))
	return nil
}
