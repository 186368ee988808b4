package desired

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/internal/failpoint"
)

// errLeaseExpired is returned while this replica cannot tell whether it still owns its nodes.
var errLeaseExpired = errors.New("this replica was not heard of lately, another may own the node")

// errUnpublishable is returned for an object that can never be published. It was logged and is not retried.
var errUnpublishable = errors.New("object can never be published")

// errScopesNotLoaded is returned while it is not known what scopes a node was granted.
var errScopesNotLoaded = errors.New("scopes are not known")

// errStaleCache is returned when another replica has published a state that this replica's cache has not received yet,
// perhaps after an apiserver's restart. A decision now would revert the node to an older state.
var errStaleCache = errors.New("the cache is behind what the stream holds")

// errDuplicate is returned when the stream took a new message for a duplicate of an old one.
var errDuplicate = errors.New("stream stored nothing, it took the message for a repetition")

// processItem processes one item; an item with an error is retried.
func (e *Engine) processItem(ctx context.Context, queue controllers.Queue[workItem], it workItem) error {
	err := e.reconcileItem(ctx, it)
	switch {
	case err == nil:
		e.waitBackoff.Forget(it)
	case ctx.Err() != nil, errors.Is(err, errScopesNotLoaded):
	case errors.Is(err, errLeaseExpired), errors.Is(err, errStaleCache):
		if errors.Is(err, errStaleCache) {
			e.metrics.staleCache.Inc()
		}
		queue.AddAfter(it, e.waitBackoff.When(it))
		return nil
	case errors.Is(err, wire.ErrConflict):
		e.metrics.conflicts.Inc()
		queue.AddRateLimited(workItem{node: it.node}) // reload what the stream holds; that enqueues the object again
		return nil
	default:
		e.metrics.errors.Inc()
		e.log.Warn("not published, trying again",
			zap.String("node", it.node), zap.String("object", it.key.Human()), zap.Error(err))
		if !errors.Is(err, wire.ErrPermanent) {
			queue.AddRateLimited(workItem{node: it.node}) // it may have been stored all the same: reload what the stream holds
		}
	}
	return err
}

// decisionAge is the maximum age of a decision when it is sent; a publish is retried for as long.
const decisionAge = 15 * time.Second

func (e *Engine) reconcileItem(ctx context.Context, it workItem) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	e.mu.Lock()
	s, fills := e.nodes[it.node], e.fillCount
	e.mu.Unlock()
	if s == nil {
		return nil
	}
	term := e.owner.Term(it.node)
	if term == 0 {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.dropNode(s)
		return nil
	}
	loaded := s.renewTerm(term)
	if it.key == (wire.Key{}) {
		return e.loadNode(ctx, s, term)
	}
	if !loaded {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.addItem(workItem{node: it.node}) // which enqueues all objects
		return nil
	}
	// A decision made from here on is sent soon or not at all: long before a tombstone may be purged.
	ctx, cancel := context.WithTimeout(ctx, min(decisionAge, e.cfg.TombstoneAge/2))
	defer cancel()
	if it.key == wire.SnapshotMarker() && !s.snapshotComplete() {
		return nil // it is enqueued again when all keys before it are processed
	}
	now, known := s.viewOf(it.key)
	if !known {
		return nil // released meanwhile
	}
	err = e.reconcileKey(ctx, s, it.key, now)
	switch {
	case err == nil:
		e.recordReconciled(s, it.key, fills)
	case errors.Is(err, errUnpublishable), errors.Is(err, errKindNotSynced): // already logged; or enqueued again when the kind is synced
	default:
		return err
	}
	e.reevaluateHold(s, it.key)
	if s.finishPending(it.key) {
		e.mu.Lock()
		e.enqueueKey(s, wire.SnapshotMarker())
		e.mu.Unlock()
	}
	return nil
}

// loadNode reads what the stream holds for a node and enqueues each object that is published or wanted.
func (e *Engine) loadNode(ctx context.Context, s *nodeState, term uint64) error {
	e.metrics.loads.Inc()
	failpoint.At("takeover.begun")
	resumed := !s.loaded()
	since := s.beginLoad()
	held, err := e.publisher.Held(ctx, s.name)
	if err != nil {
		return fmt.Errorf("load %s: %w", s.name, err)
	}
	failpoint.At("takeover.read")
	s.endLoad(since, held, e.cfg.ClusterEpoch, term)
	e.evaluateGuard(s, time.Now())

	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.refreshScopes(s, resumed); err != nil {
		s.forgetPublished()
		return err
	}
	keys := make(map[wire.Key]struct{}, len(held)+len(s.wants)+len(e.everywhere))
	gone := e.nodeGone(s)
	alive := false
	for key, m := range held {
		keys[key] = struct{}{}
		alive = alive || m.Op != wire.Delete
	}
	if gone {
		e.retireNode(s, alive)
	} else {
		for v := range s.wants {
			if !isVirtual(v.key) {
				keys[v.key] = struct{}{}
			}
		}
		for key := range e.everywhere {
			keys[key] = struct{}{}
		}
		for id, sc := range s.scopes {
			e.fillScope(s, id, sc)
			keys[id.toScope().Marker()] = struct{}{}
			maps.Copy(keys, sc.waiting)
		}
	}
	delete(keys, wire.SnapshotMarker())
	if len(keys) > 0 {
		first := make(map[wire.Key]struct{}, len(keys))
		for key := range keys {
			first[key] = struct{}{}
		}
		s.setPending(first)
		for key := range keys {
			e.enqueueKey(s, key)
		}
		failpoint.At("takeover.asked")
		return nil
	}
	s.setPending(nil)
	e.enqueueKey(s, wire.SnapshotMarker())
	return nil
}

// nodeGone reports whether a node has had no Node object for so long that it counts as permanently gone. The caller holds mu.
func (e *Engine) nodeGone(s *nodeState) bool {
	return !s.present && time.Since(s.absentSince) >= e.cfg.Grace && !time.Now().Before(e.cfg.Restore.endsAt())
}

// retireNode drops a node that is gone, once the stream holds nothing alive for it. The caller holds mu.
func (e *Engine) retireNode(s *nodeState, alive bool) {
	if alive || len(s.wants) > 0 {
		e.queue.AddAfter(workItem{node: s.name}, e.cfg.Grace) // check again after the grace period
		return
	}
	e.dropNode(s)
	delete(e.nodes, s.name)
}

// reconcileKey makes the stream hold the desired state of one object at one node.
func (e *Engine) reconcileKey(ctx context.Context, s *nodeState, key wire.Key, now keyView) error {
	in := decisionInput{published: now.published, ackedSequence: now.ackedSequence, purgeable: time.Since(now.published.madeAt) >= e.cfg.TombstoneAge}
	message := wire.Message{Node: s.name, Key: key, ClusterEpoch: e.cfg.ClusterEpoch, Time: time.Now()}
	heard := e.cacheVersion(kindOf(key)) // read before the objects, so that these are at least as new
	behind := e.cacheStale(s, kindOf(key), heard)
	var err error
	if in.want, in.retain, err = e.wantedState(s, key, &message); err != nil {
		return err
	}
	if behind {
		return errStaleCache
	}
	switch decide(in) {
	case publishAction:
		if in.want.forceDeleted && now.published.uid == in.want.uid {
			if !e.deletionAllowed(s, key, now.published) {
				return nil
			}
			message.DeletionReason = s.deletionReason(now.published)
		}
		if err := in.want.encode(); err != nil {
			return fmt.Errorf("%s: %w", key.Human(), err)
		}
		message.Op, message.Object = wire.Apply, in.want.object
		return e.publishMessage(ctx, s, message, now)
	case tombstoneAction:
		if !e.deletionAllowed(s, key, now.published) {
			return nil
		}
		message.Op, message.UID, message.DeletionReason = wire.Delete, now.published.uid, s.deletionReason(now.published)
		if _, err := e.readCached(key); errors.Is(err, errNotCached) {
			message.Version = heard // a replica whose cache is older than this does not publish the object again
		}
		return e.publishMessage(ctx, s, message, now)
	case purgeAction:
		failpoint.At("purge.decided")
		if err := e.publisher.Purge(ctx, s.name, key, now.published.sequence); err != nil {
			return fmt.Errorf("purge: %w", err)
		}
		failpoint.At("purge.done")
		s.recordPublished(key, streamRecord{}, 0)
		e.metrics.purged.Inc()
	case noAction:
	}
	return nil
}

// cacheVersion returns the resourceVersion that the cache of a kind has reached; "" if the kind has no cache.
func (e *Engine) cacheVersion(of groupResource) string {
	_, store := e.lookupKind(of)
	if store == nil {
		return ""
	}
	return store.LastStoreSyncResourceVersion()
}

// cacheStale reports whether the caches are behind what the stream holds for the node: the cache of the object's kind,
// or of a kind that references other objects that the node needs. A kind that is not Kubernetes' own is never stale.
func (e *Engine) cacheStale(s *nodeState, of groupResource, heard string) bool {
	if heard == "" {
		return false
	}
	if olderVersion(heard, s.newestVersion(of)) {
		return true
	}
	return slices.ContainsFunc(e.referringKinds, func(k groupResource) bool { return olderVersion(e.cacheVersion(k), s.newestVersion(k)) })
}

// wantedState returns the desired state of an object at a node, nil for nothing, and fills in the message that would carry it.
func (e *Engine) wantedState(s *nodeState, key wire.Key, message *wire.Message) (want *payload, keep bool, err error) {
	e.mu.Lock()
	if e.kindNotSynced(key) {
		e.mu.Unlock()
		return nil, true, errKindNotSynced
	}
	gone := e.nodeGone(s)
	keep = !s.present && !gone
	needed := e.nodeNeeds(s, key) || s.hasScope(key)
	if _, all := e.everywhere[key]; all {
		needed = true
	}
	e.reportWithheld(s, key, e.nodeNeeds(s, key) && !gone)
	own, keepOwn, err := e.ownState(s, key)
	e.mu.Unlock()
	keep = keep || keepOwn
	if err != nil {
		return nil, true, err
	}
	if own != nil {
		message.Version, message.Digest = own.version, own.digest
		return own, keep, nil
	}
	if key == wire.SnapshotMarker() && !gone {
		*message = snapshotMessage(s.name)
		message.ClusterEpoch, message.Time = e.cfg.ClusterEpoch, time.Now()
		return &payload{version: message.Version, digest: message.Digest, object: message.Object}, keep, nil
	}
	if e.cfg.Protected.Covers(key) {
		return nil, false, nil // also for what this replica, or an older one, has published before
	}
	if !needed || gone {
		return nil, keep || s.hasMarker(key), nil
	}
	p, err := e.payloadFor(s, key)
	if errors.Is(err, errNotCached) {
		return nil, keep, nil
	}
	if err != nil {
		return nil, keep, err
	}
	message.UID, message.Version, message.Digest, message.DeletionReason = p.uid, p.version, p.digest, p.deletionReason
	return p, keep, nil
}

// ownState returns the desired state of objects that Frond itself makes: nothing for any other key. The caller holds mu.
func (e *Engine) ownState(s *nodeState, key wire.Key) (want *payload, keep bool, err error) {
	if of, ok := wire.ScopeOf(key); ok {
		return e.markerState(s, of)
	}
	if !isStatic(key) || e.nodeGone(s) {
		return nil, false, nil
	}
	p, ok := e.staticObjects[key]
	if !ok {
		return nil, true, nil
	}
	return &p, false, nil
}

// payloadFor reads an object and makes its payload. Objects that several nodes share are encoded once.
func (e *Engine) payloadFor(s *nodeState, key wire.Key) (*payload, error) {
	o, err := e.readCached(key)
	if err != nil {
		return nil, err
	}
	k, _ := e.lookupKind(kindOf(key))
	home := k != nil && k.nodeOf != nil && k.nodeOf(o) == s.name
	if p, ok := e.encoded.get(key, string(o.GetUID()), o.GetResourceVersion()); ok && !home {
		return &p, nil
	}
	p, err := makePayload(o, !home)
	if err == nil && p.source != nil && k != nil && e.kinds[kindOf(key)] == nil {
		err = p.encode()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key.Human(), err)
	}
	if p.source == nil && !home {
		e.encoded.put(key, p)
	}
	return &p, nil
}

// publishMessage publishes a message, expecting the last sequence that the view holds. A message that can never be
// stored is counted and dropped.
func (e *Engine) publishMessage(ctx context.Context, s *nodeState, m wire.Message, over keyView) error {
	if !e.owner.LeaseValid() {
		return errLeaseExpired
	}
	failpoint.At("publish.decided")
	m.Acked = over.published.knownVersion(over.ackedSequence)
	began := time.Now()
	sequence, err := e.publisher.Publish(ctx, m, over.published.sequence)
	e.metrics.publishSeconds.Observe(time.Since(began).Seconds())
	if errors.Is(err, wire.ErrPermanent) {
		e.metrics.refused.Inc()
		e.log.Error("object can never be published, its node goes without it",
			zap.String("node", m.Node), zap.String("object", m.Key.Human()), zap.Error(err))
		return errUnpublishable
	}
	if err != nil {
		return err
	}
	failpoint.At("publish.stored")
	m.Sequence = sequence
	r := recordOf(m, e.cfg.ClusterEpoch)
	if !s.recordPublished(m.Key, r, over.topSequence) {
		e.metrics.duplicates.Inc()
		return fmt.Errorf("sequence %d: %w", sequence, errDuplicate)
	}
	failpoint.At("publish.noted")
	e.metrics.published.WithLabelValues(string(m.Op), m.Key.Resource).Inc()
	e.metrics.bytes.Add(float64(len(m.Object)))
	return nil
}
