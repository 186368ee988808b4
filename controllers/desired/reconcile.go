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
	"github.com/frond-edge/frond/internal/crash"
)

// errLeaseExpired says that this replica cannot tell whether it still owns its nodes.
var errLeaseExpired = errors.New("this replica was not heard of lately, another may own the node")

// errUnpublishable says that an object can never be published. It was told and is not tried again.
var errUnpublishable = errors.New("object can never be published")

// errScopesNotLoaded says that nobody can tell yet what a node was granted.
var errScopesNotLoaded = errors.New("scopes are not known")

// errStaleCache says that another replica has published what this one's cache is still to hear of: an event that is on its way, after
// an apiserver's restart perhaps. Deciding now would take the node back.
var errStaleCache = errors.New("the cache is behind what the stream holds")

// errDuplicate says that the stream took a new message for a repetition of an old one.
var errDuplicate = errors.New("stream stored nothing, it took the message for a repetition")

// processItem does one item; an error is that it comes again.
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
		queue.AddRateLimited(workItem{node: it.node}) // read what the stream holds; it asks for the object again
		return nil
	default:
		e.metrics.errors.Inc()
		e.log.Warn("not published, trying again",
			zap.String("node", it.node), zap.String("object", it.key.Human()), zap.Error(err))
		if !errors.Is(err, wire.ErrPermanent) {
			queue.AddRateLimited(workItem{node: it.node}) // it may have been stored all the same: read what the stream holds
		}
	}
	return err
}

// decisionAge is how old a decision may be when it is sent; a publish is tried for as long.
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
		e.addItem(workItem{node: it.node}) // which asks for everything
		return nil
	}
	// What is decided from here on is sent soon or not at all: long before a tombstone may be purged.
	ctx, cancel := context.WithTimeout(ctx, min(decisionAge, e.cfg.TombstoneAge/2))
	defer cancel()
	if it.key == wire.SnapshotMarker() && !s.snapshotComplete() {
		return nil // it comes again when all before it is done
	}
	now, known := s.viewOf(it.key)
	if !known {
		return nil // released meanwhile
	}
	err = e.reconcileKey(ctx, s, it.key, now)
	switch {
	case err == nil:
		e.recordReconciled(s, it.key, fills)
	case errors.Is(err, errUnpublishable), errors.Is(err, errKindNotSynced): // told; or asked for again when the kind is followed
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

// loadNode reads what the stream holds for a node and asks for each object that is held or wanted.
func (e *Engine) loadNode(ctx context.Context, s *nodeState, term uint64) error {
	e.metrics.loads.Inc()
	crash.At("takeover.begun")
	resumed := !s.loaded()
	since := s.beginLoad()
	held, err := e.publisher.Held(ctx, s.name)
	if err != nil {
		return fmt.Errorf("load %s: %w", s.name, err)
	}
	crash.At("takeover.read")
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
		crash.At("takeover.asked")
		return nil
	}
	s.setPending(nil)
	e.enqueueKey(s, wire.SnapshotMarker())
	return nil
}

// nodeGone reports whether a node has had no Node object for so long that it will not come back. The caller holds mu.
func (e *Engine) nodeGone(s *nodeState) bool {
	return !s.present && time.Since(s.absentSince) >= e.cfg.Grace && !time.Now().Before(e.cfg.Restore.endsAt())
}

// retireNode forgets a node that is gone, once the stream holds nothing alive for it. The caller holds mu.
func (e *Engine) retireNode(s *nodeState, alive bool) {
	if alive || len(s.wants) > 0 {
		e.queue.AddAfter(workItem{node: s.name}, e.cfg.Grace) // look again
		return
	}
	e.dropNode(s)
	delete(e.nodes, s.name)
}

// reconcileKey makes the stream hold what one object at one node should be.
func (e *Engine) reconcileKey(ctx context.Context, s *nodeState, key wire.Key, now keyView) error {
	in := decisionInput{published: now.published, ackedSequence: now.ackedSequence, purgeable: time.Since(now.published.madeAt) >= e.cfg.TombstoneAge}
	message := wire.Message{Node: s.name, Key: key, ClusterEpoch: e.cfg.ClusterEpoch, Time: time.Now()}
	heard := e.cacheVersion(kindOf(key)) // before the look at the objects, so that they are as new at least
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
			message.Version = heard // who has heard less does not bring it back
		}
		return e.publishMessage(ctx, s, message, now)
	case purgeAction:
		crash.At("purge.decided")
		if err := e.publisher.Purge(ctx, s.name, key, now.published.sequence); err != nil {
			return fmt.Errorf("purge: %w", err)
		}
		crash.At("purge.done")
		s.recordPublished(key, streamRecord{}, 0)
		e.metrics.purged.Inc()
	case noAction:
	}
	return nil
}

// cacheVersion is the resourceVersion up to which the cache has heard of a kind; "" where no cache has it.
func (e *Engine) cacheVersion(of groupResource) string {
	_, store := e.lookupKind(of)
	if store == nil {
		return ""
	}
	return store.LastStoreSyncResourceVersion()
}

// cacheStale reports whether what is decided now for an object of a kind would be decided on less than what the stream holds for the node:
// of this kind, or of one that says what else the node needs. What is no kind of Kubernetes' is never behind.
func (e *Engine) cacheStale(s *nodeState, of groupResource, heard string) bool {
	if heard == "" {
		return false
	}
	if olderVersion(heard, s.newestVersion(of)) {
		return true
	}
	return slices.ContainsFunc(e.referringKinds, func(k groupResource) bool { return olderVersion(e.cacheVersion(k), s.newestVersion(k)) })
}

// wantedState returns what the node should have of an object, nil for nothing, and fills in the message that would carry it.
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
		return nil, false, nil // also what this replica, or an older one, has published before
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

// ownState says what a node should have of what Frond itself makes: nothing for any other key. The caller holds mu.
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

// payloadFor reads an object and digests it. Objects that several nodes share are encoded once.
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

// publishMessage sends a message over what the view says the stream holds. What can never be sent is counted and left.
func (e *Engine) publishMessage(ctx context.Context, s *nodeState, m wire.Message, over keyView) error {
	if !e.owner.LeaseValid() {
		return errLeaseExpired
	}
	crash.At("publish.decided")
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
	crash.At("publish.stored")
	m.Sequence = sequence
	r := recordOf(m, e.cfg.ClusterEpoch)
	if !s.recordPublished(m.Key, r, over.topSequence) {
		e.metrics.duplicates.Inc()
		return fmt.Errorf("sequence %d: %w", sequence, errDuplicate)
	}
	crash.At("publish.noted")
	e.metrics.published.WithLabelValues(string(m.Op), m.Key.Resource).Inc()
	e.metrics.bytes.Add(float64(len(m.Object)))
	return nil
}
