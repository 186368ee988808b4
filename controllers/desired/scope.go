package desired

import (
	"encoding/json"
	"fmt"
	"time"

	"go.uber.org/zap"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
)

// ScopeSource returns the scopes that a node requested and was granted. told is false for a node whose requests are not
// known: what it has is kept. An error means that the scopes cannot be determined yet: nothing about the node is
// decided. It must neither block nor call the engine.
type ScopeSource func(node string) (granted []wire.ScopeKind, told bool, err error)

// scopeID identifies a scope of one node.
type scopeID struct {
	groupResource
	namespace string
}

func scopeIDOf(s wire.Scope) scopeID {
	return scopeID{groupResource{s.Group, s.Resource}, s.Namespace}
}

func (id scopeID) toScope() wire.Scope {
	return wire.Scope{Group: id.group, Resource: id.resource, Namespace: id.namespace}
}

// coveringScopes returns the two scopes that an object may belong to.
func coveringScopes(key wire.Key) [2]scopeID {
	return [2]scopeID{{kindOf(key), ""}, {kindOf(key), key.Namespace}}
}

// grantedScope is a scope that a node was granted. Its marker may be in the stream only while every object is that
// existed when the scope was granted. Guarded by Engine.mu.
type grantedScope struct {
	kind wire.ScopeKind
	// filled: waiting was made from what the cache holds. It is false while the kind is not synced yet.
	filled bool
	// waiting are the objects that must be processed before the marker.
	waiting map[wire.Key]struct{}
	// fillNumber is the number of that filling; work that began before it does not count.
	fillNumber uint64
	// withdrawn: the marker that the stream may hold is not valid, and is removed until nothing waits.
	withdrawn bool
}

func (sc *grantedScope) complete() bool { return sc.filled && len(sc.waiting) == 0 }

// scopeSubscribers are the nodes with a scope, by kind and namespace, so that the cost of an event is proportional to
// what it touches.
type scopeSubscribers map[groupResource]map[string]map[*nodeState]struct{}

func (a scopeSubscribers) add(id scopeID, s *nodeState) {
	byNamespace := a[id.groupResource]
	if byNamespace == nil {
		byNamespace = map[string]map[*nodeState]struct{}{}
		a[id.groupResource] = byNamespace
	}
	if byNamespace[id.namespace] == nil {
		byNamespace[id.namespace] = map[*nodeState]struct{}{}
	}
	byNamespace[id.namespace][s] = struct{}{}
}

func (a scopeSubscribers) remove(id scopeID, s *nodeState) {
	byNamespace := a[id.groupResource]
	delete(byNamespace[id.namespace], s)
	if len(byNamespace[id.namespace]) == 0 {
		delete(byNamespace, id.namespace)
	}
	if len(byNamespace) == 0 {
		delete(a, id.groupResource)
	}
}

// RefreshScopes evaluates a node's granted scopes again after they have changed. It does not block.
func (e *Engine) RefreshScopes(node string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.nodes[node]
	if s == nil || !s.loaded() {
		return // the load refreshes the scopes
	}
	if err := e.refreshScopes(s, false); err != nil {
		e.log.Warn("scopes not known", zap.String("node", node), zap.Error(err))
	}
}

// refreshScopes updates a node's scopes. resumed: another replica or term served the node before, so a marker in the
// stream is valid unless there is evidence against it. The caller holds mu.
func (e *Engine) refreshScopes(s *nodeState, resumed bool) error {
	if e.cfg.Scopes == nil {
		s.scopesLoaded = true
		return nil
	}
	granted, told, err := e.cfg.Scopes(s.name)
	if err != nil {
		return fmt.Errorf("%w: %w", errScopesNotLoaded, err)
	}
	if s.scopesLoaded = s.scopesLoaded || told; !told {
		return nil
	}
	next := make(map[scopeID]wire.ScopeKind, len(granted))
	for _, kind := range granted {
		if !e.cfg.Protected.Contains(kind.Namespace) { // granted before the namespace was protected
			next[scopeIDOf(kind.Scope)] = kind
		}
	}
	for id, sc := range s.scopes {
		if kind, ok := next[id]; !ok || kind != sc.kind {
			e.endScope(s, id)
			e.enqueueKey(s, id.toScope().Marker()) // the scope's objects are removed after it: see sweepScope
		}
	}
	for id, kind := range next {
		if s.scopes[id] == nil {
			e.beginScope(s, id, kind, resumed)
		}
	}
	return nil
}

func (e *Engine) beginScope(s *nodeState, id scopeID, kind wire.ScopeKind, resumed bool) {
	if s.scopes == nil {
		s.scopes = map[scopeID]*grantedScope{}
	}
	sc := &grantedScope{kind: kind, withdrawn: !resumed}
	s.scopes[id] = sc
	e.subscribers.add(id, s)
	e.retainScopeKind(kind)
	if !resumed { // otherwise the load enqueues all objects
		e.enqueueKey(s, id.toScope().Marker())
		e.fillScope(s, id, sc)
	}
}

func (e *Engine) endScope(s *nodeState, id scopeID) {
	delete(s.scopes, id)
	e.subscribers.remove(id, s)
	e.releaseKind(id.groupResource)
}

// dropNode drops what the stream holds for a node and what the node was granted: another replica serves it. The caller holds mu.
func (e *Engine) dropNode(s *nodeState) {
	s.forgetPublished()
	for id := range s.scopes {
		e.endScope(s, id)
	}
	s.scopesLoaded = false
}

// fillScope enqueues each object of a scope, and each that the stream holds of it, and records that the marker waits
// for them. The caller holds mu.
func (e *Engine) fillScope(s *nodeState, id scopeID, sc *grantedScope) {
	sc.filled, sc.waiting = false, nil
	found, ok := e.objectsOf(id)
	if !ok {
		return // refillScopes fills it once the kind is synced
	}
	sc.waiting = make(map[wire.Key]struct{}, len(found))
	born := make(map[wire.Key]time.Time, len(found))
	for _, object := range found {
		o, ok := object.(client.Object)
		if !ok || e.cfg.Protected.Contains(o.GetNamespace()) {
			continue
		}
		key := wire.Key{Group: id.group, Resource: id.resource, Namespace: o.GetNamespace(), Name: o.GetName()}
		sc.waiting[key] = struct{}{}
		born[key] = o.GetCreationTimestamp().Time
	}
	e.fillCount++
	sc.filled, sc.fillNumber = true, e.fillCount
	marker := id.toScope().Marker()
	if s.markerStale(marker, born) {
		sc.withdrawn = true
		e.enqueueKey(s, marker)
	}
	for key := range sc.waiting {
		e.enqueueKey(s, key)
	}
	// Objects that were deleted while the kind was not synced are in no cache: they are found in what the stream holds.
	for _, key := range s.publishedKeys(sc.kind.Scope) {
		if _, there := sc.waiting[key]; !there {
			e.enqueueKey(s, key)
		}
	}
	if len(sc.waiting) == 0 {
		e.enqueueKey(s, marker)
	}
}

// objectsOf lists a scope's objects in the cache; ok is false while its kind is not synced.
func (e *Engine) objectsOf(id scopeID) (found []any, ok bool) {
	_, store := e.lookupKind(id.groupResource)
	if store == nil {
		return nil, false
	}
	if id.namespace == "" {
		return store.List(), true
	}
	found, err := store.ByIndex(toolscache.NamespaceIndex, id.namespace)
	if err != nil {
		e.log.Error("objects of scope not listed", zap.String("scope", id.toScope().String()), zap.Error(err))
		return nil, false
	}
	return found, true
}

// refillScopes fills the scopes of a newly synced kind.
func (e *Engine) refillScopes(kind groupResource) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for namespace, sites := range e.subscribers[kind] {
		id := scopeID{kind, namespace}
		for s := range sites {
			e.fillScope(s, id, s.scopes[id])
		}
	}
}

// enqueueScoped enqueues an object at each node that has a scope on it. The caller holds mu.
func (e *Engine) enqueueScoped(key wire.Key) {
	byNamespace := e.subscribers[kindOf(key)]
	for s := range byNamespace[""] {
		e.enqueueKey(s, key)
	}
	if key.Namespace == "" {
		return
	}
	for s := range byNamespace[key.Namespace] {
		e.enqueueKey(s, key)
	}
}

// hasScope reports whether a node was granted a scope that covers an object. The caller holds mu.
func (s *nodeState) hasScope(key wire.Key) bool {
	for _, id := range coveringScopes(key) {
		if s.scopes[id] != nil {
			return true
		}
	}
	return false
}

// recordReconciled records that the stream holds the desired state of an object, or of a marker, as decided when
// fillCount was fills.
func (e *Engine) recordReconciled(s *nodeState, key wire.Key, fills uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if marked, ok := wire.ScopeOf(key); ok {
		e.sweepScope(s, marked)
		return
	}
	for _, id := range coveringScopes(key) {
		sc := s.scopes[id]
		if sc == nil || sc.fillNumber > fills {
			continue
		}
		if _, waits := sc.waiting[key]; !waits {
			continue
		}
		if delete(sc.waiting, key); sc.complete() {
			e.enqueueKey(s, id.toScope().Marker())
		}
	}
}

// sweepScope enqueues the objects of a scope that has ended, once its marker is gone: a node must never take the
// remaining objects for the whole scope. The caller holds mu.
func (e *Engine) sweepScope(s *nodeState, ended wire.Scope) {
	if s.scopes[scopeIDOf(ended)] != nil && !e.nodeGone(s) {
		return
	}
	for _, key := range s.leftoverKeys(ended) {
		e.enqueueKey(s, key)
	}
}

// markerState returns the desired state of a scope's marker: a payload, or nothing, unless keep. The caller holds mu.
func (e *Engine) markerState(s *nodeState, of wire.Scope) (want *payload, keep bool, err error) {
	sc := s.scopes[scopeIDOf(of)]
	switch {
	case e.nodeGone(s):
		return nil, false, nil
	case sc == nil:
		return nil, !s.scopesLoaded, nil
	case !sc.complete():
		return nil, !sc.withdrawn, nil
	}
	sc.withdrawn = false
	object, err := json.Marshal(sc.kind.Mark())
	if err != nil {
		return nil, true, fmt.Errorf("encode the marker of %s: %w", sc.kind.String(), err)
	}
	return &payload{version: "1", digest: "1-" + sc.kind.Version + "-" + sc.kind.Kind, object: object}, false, nil
}

// markerStale reports whether the stream holds a scope's marker and lacks objects that are older: it has lost them.
func (s *nodeState) markerStale(marker wire.Key, born map[wire.Key]time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	mark, ok := s.published[marker]
	if !ok || mark.deleted {
		return false
	}
	for key, at := range born {
		if r, ok := s.published[key]; (!ok || r.deleted) && at.Before(mark.madeAt) {
			return true
		}
	}
	return false
}

// hasMarker reports whether the stream holds the marker of a scope that an object belongs to.
func (s *nodeState) hasMarker(key wire.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.markerCount == 0 {
		return false
	}
	for _, id := range coveringScopes(key) {
		if r, ok := s.published[id.toScope().Marker()]; ok && !r.deleted {
			return true
		}
	}
	return false
}

// leftoverKeys returns the objects of a scope that the stream holds, if its marker is gone.
func (s *nodeState) leftoverKeys(ended wire.Scope) []wire.Key {
	s.mu.Lock()
	r, ok := s.published[ended.Marker()]
	s.mu.Unlock()
	if ok && !r.deleted {
		return nil
	}
	return s.publishedKeys(ended)
}

// publishedKeys returns the objects of a scope that the stream holds.
func (s *nodeState) publishedKeys(of wire.Scope) []wire.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []wire.Key
	for key, r := range s.published {
		if !r.deleted && of.Covers(key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// countScopes counts the granted scopes at nodes of this replica: those whose marker may be published (complete), or the others.
func (e *Engine) countScopes(complete bool) func() float64 {
	return func() float64 {
		e.mu.Lock()
		defer e.mu.Unlock()
		n := 0
		for _, s := range e.nodes {
			for _, sc := range s.scopes {
				if sc.complete() == complete {
					n++
				}
			}
		}
		return float64(n)
	}
}
