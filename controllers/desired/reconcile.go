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

// errAway says that this replica cannot tell whether it still owns its nodes.
var errAway = errors.New("this replica was not heard of lately, another may own the node")

// errUnpublishable says that an object can never be published. It was told and is not tried again.
var errUnpublishable = errors.New("object can never be published")

// errScopesUnknown says that nobody can tell yet what a node was granted.
var errScopesUnknown = errors.New("scopes are not known")

// errBehind says that another replica has published what this one's cache is still to hear of: an event that is on its way, after
// an apiserver's restart perhaps. Deciding now would take the node back.
var errBehind = errors.New("the cache is behind what the stream holds")

// errRepeated says that the stream took a new message for a repetition of an old one.
var errRepeated = errors.New("stream stored nothing, it took the message for a repetition")

// work does one item; an error is that it comes again.
func (e *Engine) work(ctx context.Context, queue controllers.Queue[item], it item) error {
	err := e.do(ctx, it)
	switch {
	case err == nil:
		e.away.Forget(it)
	case ctx.Err() != nil, errors.Is(err, errScopesUnknown):
	case errors.Is(err, errAway), errors.Is(err, errBehind):
		if errors.Is(err, errBehind) {
			e.metrics.behind.Inc()
		}
		queue.AddAfter(it, e.away.When(it))
		return nil
	case errors.Is(err, wire.ErrConflict):
		e.metrics.conflicts.Inc()
		queue.AddRateLimited(item{node: it.node}) // read what the stream holds; it asks for the object again
		return nil
	default:
		e.metrics.errors.Inc()
		e.log.Warn("not published, trying again",
			zap.String("node", it.node), zap.String("object", it.key.Human()), zap.Error(err))
		if !errors.Is(err, wire.ErrPermanent) {
			queue.AddRateLimited(item{node: it.node}) // it may have been stored all the same: read what the stream holds
		}
	}
	return err
}

// decisionAge is how old a decision may be when it is sent; a publish is tried for as long.
const decisionAge = 15 * time.Second

func (e *Engine) do(ctx context.Context, it item) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	e.mu.Lock()
	s, fills := e.sites[it.node], e.fills
	e.mu.Unlock()
	if s == nil {
		return nil
	}
	term := e.owner.Term(it.node)
	if term == 0 {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.drop(s)
		return nil
	}
	loaded := s.renew(term)
	if it.key == (wire.Key{}) {
		return e.load(ctx, s, term)
	}
	if !loaded {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.add(item{node: it.node}) // which asks for everything
		return nil
	}
	// What is decided from here on is sent soon or not at all: long before a tombstone may be purged.
	ctx, cancel := context.WithTimeout(ctx, min(decisionAge, e.cfg.TombstoneAge/2))
	defer cancel()
	if it.key == wire.SnapshotMarker() && !s.complete() {
		return nil // it comes again when all before it is done
	}
	now, known := s.look(it.key)
	if !known {
		return nil // released meanwhile
	}
	err = e.settle(ctx, s, it.key, now)
	switch {
	case err == nil:
		e.seen(s, it.key, fills)
	case errors.Is(err, errUnpublishable), errors.Is(err, errUnfollowed): // told; or asked for again when the kind is followed
	default:
		return err
	}
	e.review(s, it.key)
	if s.finish(it.key) {
		e.mu.Lock()
		e.enqueue(s, wire.SnapshotMarker())
		e.mu.Unlock()
	}
	return nil
}

// load reads what the stream holds for a node and asks for each object that is held or wanted.
func (e *Engine) load(ctx context.Context, s *site, term uint64) error {
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
	e.judge(s, time.Now())

	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.rescope(s, resumed); err != nil {
		s.release()
		return err
	}
	keys := make(map[wire.Key]struct{}, len(held)+len(s.wants)+len(e.everywhere))
	gone := e.gone(s)
	alive := false
	for key, m := range held {
		keys[key] = struct{}{}
		alive = alive || m.Op != wire.Delete
	}
	if gone {
		e.retire(s, alive)
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
			e.fill(s, id, sc)
			keys[id.scope().Marker()] = struct{}{}
			maps.Copy(keys, sc.waiting)
		}
	}
	delete(keys, wire.SnapshotMarker())
	if len(keys) > 0 {
		first := make(map[wire.Key]struct{}, len(keys))
		for key := range keys {
			first[key] = struct{}{}
		}
		s.expect(first)
		for key := range keys {
			e.enqueue(s, key)
		}
		crash.At("takeover.asked")
		return nil
	}
	s.expect(nil)
	e.enqueue(s, wire.SnapshotMarker())
	return nil
}

// gone reports whether a node has had no Node object for so long that it will not come back. The caller holds mu.
func (e *Engine) gone(s *site) bool {
	return !s.present && time.Since(s.absentSince) >= e.cfg.Grace && !time.Now().Before(e.cfg.Restore.until())
}

// retire forgets a node that is gone, once the stream holds nothing alive for it. The caller holds mu.
func (e *Engine) retire(s *site, alive bool) {
	if alive || len(s.wants) > 0 {
		e.queue.AddAfter(item{node: s.name}, e.cfg.Grace) // look again
		return
	}
	e.drop(s)
	delete(e.sites, s.name)
}

// settle makes the stream hold what one object at one node should be.
func (e *Engine) settle(ctx context.Context, s *site, key wire.Key, now view) error {
	in := input{held: now.held, acked: now.acked, ripe: time.Since(now.held.at) >= e.cfg.TombstoneAge}
	message := wire.Message{Node: s.name, Key: key, ClusterEpoch: e.cfg.ClusterEpoch, Time: time.Now()}
	heard := e.heard(kindOf(key)) // before the look at the objects, so that they are as new at least
	behind := e.behind(s, kindOf(key), heard)
	var err error
	if in.want, in.keep, err = e.wanted(s, key, &message); err != nil {
		return err
	}
	if behind {
		return errBehind
	}
	switch decide(in) {
	case publish:
		if in.want.forced && now.held.uid == in.want.uid {
			if !e.may(s, key, now.held) {
				return nil
			}
			message.Leaving = s.partingWord(now.held)
		}
		if err := in.want.encode(); err != nil {
			return fmt.Errorf("%s: %w", key.Human(), err)
		}
		message.Op, message.Object = wire.Apply, in.want.object
		return e.publish(ctx, s, message, now)
	case tombstone:
		if !e.may(s, key, now.held) {
			return nil
		}
		message.Op, message.UID, message.Leaving = wire.Delete, now.held.uid, s.partingWord(now.held)
		if _, err := e.read(key); errors.Is(err, errAbsent) {
			message.Version = heard // who has heard less does not bring it back
		}
		return e.publish(ctx, s, message, now)
	case purge:
		crash.At("purge.decided")
		if err := e.publisher.Purge(ctx, s.name, key, now.held.sequence); err != nil {
			return fmt.Errorf("purge: %w", err)
		}
		crash.At("purge.done")
		s.note(key, record{}, 0)
		e.metrics.purged.Inc()
	case nothing:
	}
	return nil
}

// heard is the resourceVersion up to which the cache has heard of a kind; "" where no cache has it.
func (e *Engine) heard(of groupResource) string {
	_, store := e.lookup(of)
	if store == nil {
		return ""
	}
	return store.LastStoreSyncResourceVersion()
}

// behind reports whether what is decided now for an object of a kind would be decided on less than what the stream holds for the node:
// of this kind, or of one that says what else the node needs. What is no kind of Kubernetes' is never behind.
func (e *Engine) behind(s *site, of groupResource, heard string) bool {
	if heard == "" {
		return false
	}
	if older(heard, s.newestOf(of)) {
		return true
	}
	return slices.ContainsFunc(e.needing, func(k groupResource) bool { return older(e.heard(k), s.newestOf(k)) })
}

// wanted returns what the node should have of an object, nil for nothing, and fills in the message that would carry it.
func (e *Engine) wanted(s *site, key wire.Key, message *wire.Message) (want *payload, keep bool, err error) {
	e.mu.Lock()
	if e.isUnfollowed(key) {
		e.mu.Unlock()
		return nil, true, errUnfollowed
	}
	gone := e.gone(s)
	keep = !s.present && !gone
	needed := e.needs(s, key) || s.scoped(key)
	if _, all := e.everywhere[key]; all {
		needed = true
	}
	e.reportWithheld(s, key, e.needs(s, key) && !gone)
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
		*message = marker(s.name)
		message.ClusterEpoch, message.Time = e.cfg.ClusterEpoch, time.Now()
		return &payload{version: message.Version, digest: message.Digest, object: message.Object}, keep, nil
	}
	if e.cfg.Protected.Covers(key) {
		return nil, false, nil // also what this replica, or an older one, has published before
	}
	if !needed || gone {
		return nil, keep || s.marked(key), nil
	}
	p, err := e.payload(s, key)
	if errors.Is(err, errAbsent) {
		return nil, keep, nil
	}
	if err != nil {
		return nil, keep, err
	}
	message.UID, message.Version, message.Digest, message.Leaving = p.uid, p.version, p.digest, p.leaving
	return p, keep, nil
}

// ownState says what a node should have of what Frond itself makes: nothing for any other key. The caller holds mu.
func (e *Engine) ownState(s *site, key wire.Key) (want *payload, keep bool, err error) {
	if of, ok := wire.ScopeOf(key); ok {
		return e.markerState(s, of)
	}
	if !isProvided(key) || e.gone(s) {
		return nil, false, nil
	}
	p, ok := e.provided[key]
	if !ok {
		return nil, true, nil
	}
	return &p, false, nil
}

// payload reads an object and digests it. Objects that several nodes share are encoded once.
func (e *Engine) payload(s *site, key wire.Key) (*payload, error) {
	o, err := e.read(key)
	if err != nil {
		return nil, err
	}
	k, _ := e.lookup(kindOf(key))
	home := k != nil && k.home != nil && k.home(o) == s.name
	if p, ok := e.encoded.get(key, string(o.GetUID()), o.GetResourceVersion()); ok && !home {
		return &p, nil
	}
	p, err := summarize(o, !home)
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

// publish sends a message over what the view says the stream holds. What can never be sent is counted and left.
func (e *Engine) publish(ctx context.Context, s *site, m wire.Message, over view) error {
	if !e.owner.Fresh() {
		return errAway
	}
	crash.At("publish.decided")
	m.Acked = over.held.known(over.acked)
	began := time.Now()
	sequence, err := e.publisher.Publish(ctx, m, over.held.sequence)
	e.metrics.took.Observe(time.Since(began).Seconds())
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
	if !s.note(m.Key, r, over.top) {
		e.metrics.repeated.Inc()
		return fmt.Errorf("sequence %d: %w", sequence, errRepeated)
	}
	crash.At("publish.noted")
	e.metrics.published.WithLabelValues(string(m.Op), m.Key.Resource).Inc()
	e.metrics.bytes.Add(float64(len(m.Object)))
	return nil
}
