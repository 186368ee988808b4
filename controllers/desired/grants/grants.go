// Package grants keeps the scopes that components at nodes were granted: which objects belong to them, and when the marker of
// a scope may be published, which tells the node that it has the whole scope.
package grants

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/objectcache"
	"github.com/frond-edge/frond/controllers/desired/payload"
	"github.com/frond-edge/frond/controllers/desired/published"
)

// Source returns the scopes that a node requested and was granted. told is false for a node whose requests are not
// known: what it has is kept. An error means that the scopes cannot be determined yet: nothing about the node is
// decided. It must neither block nor call the engine.
type Source func(node string) (granted []wire.ScopeKind, told bool, err error)

// scopeID identifies a scope of one node.
type scopeID struct {
	kinds.ID
	namespace string
}

func scopeIDOf(s wire.Scope) scopeID {
	return scopeID{kinds.ID{Group: s.Group, Resource: s.Resource}, s.Namespace}
}

func (id scopeID) toScope() wire.Scope {
	return wire.Scope{Group: id.Group, Resource: id.Resource, Namespace: id.namespace}
}

// coveringScopes returns the two scopes that an object may belong to.
func coveringScopes(key wire.Key) [2]scopeID {
	return [2]scopeID{{kinds.Of(key), ""}, {kinds.Of(key), key.Namespace}}
}

// grantedScope is a scope that a node was granted. Its marker may be in the stream only while every object is that
// existed when the scope was granted.
type grantedScope struct {
	kind wire.ScopeKind
	// filled: waiting was made from what the cache holds. It is false while the kind is not synced yet.
	filled bool
	// waiting are the objects that must be processed before the marker.
	waiting map[wire.Key]struct{}
	// fillNumber is the number of that filling; work that began before it does not count.
	fillNumber uint64
	// withdrawn: the marker that the stream may hold is not valid. It is removed, also if nothing waits any more: the next one follows the
	// objects.
	withdrawn bool
}

func (sc *grantedScope) complete() bool { return sc.filled && len(sc.waiting) == 0 }

// scopeSubscribers are the nodes with a scope, by kind and namespace, so that the cost of an event is proportional to
// what it touches.
type scopeSubscribers map[kinds.ID]map[string]map[*Node]struct{}

func (a scopeSubscribers) add(id scopeID, n *Node) {
	byNamespace := a[id.ID]
	if byNamespace == nil {
		byNamespace = map[string]map[*Node]struct{}{}
		a[id.ID] = byNamespace
	}
	if byNamespace[id.namespace] == nil {
		byNamespace[id.namespace] = map[*Node]struct{}{}
	}
	byNamespace[id.namespace][n] = struct{}{}
}

func (a scopeSubscribers) remove(id scopeID, n *Node) {
	byNamespace := a[id.ID]
	delete(byNamespace[id.namespace], n)
	if len(byNamespace[id.namespace]) == 0 {
		delete(byNamespace, id.namespace)
	}
	if len(byNamespace) == 0 {
		delete(a, id.ID)
	}
}

// ErrNotLoaded is returned while it is not known what scopes a node was granted.
var ErrNotLoaded = errors.New("scopes are not known")

// Node is the scopes of one node. It has no lock of its own, as Book has none.
type Node struct {
	name      string
	published *published.State
	scopes    map[scopeID]*grantedScope
	// loaded: the node's scope requests are known.
	loaded bool
}

// NewNode creates a Node without scopes. published is what the stream holds for the node.
func NewNode(name string, published *published.State) *Node {
	return &Node{name: name, published: published}
}

// Name returns the node's name.
func (n *Node) Name() string { return n.name }

// Published returns what the stream holds for the node.
func (n *Node) Published() *published.State { return n.published }

// Covers reports whether the node was granted a scope that covers an object.
func (n *Node) Covers(key wire.Key) bool {
	for _, id := range coveringScopes(key) {
		if n.scopes[id] != nil {
			return true
		}
	}
	return false
}

// Count counts the granted scopes whose marker may be published (complete), or the others.
func (n *Node) Count(complete bool) int {
	count := 0
	for _, sc := range n.scopes {
		if sc.complete() == complete {
			count++
		}
	}
	return count
}

// Retainer keeps a kind in the cache while a scope refers to it.
type Retainer interface {
	Retain(kinds.ID, schema.GroupVersionKind)
	Release(kinds.ID)
}

// Config configures a Book.
type Config struct {
	// Source returns the granted scopes; nil: no node has any.
	Source Source
	// ServicesByNeed reports whether a node asks for the scopes on Services and EndpointSlices that it wants; nil: no node does.
	// It must neither block nor call the engine.
	ServicesByNeed func(node string) bool
	// Protected are the namespaces without scopes.
	Protected controllers.ProtectedNamespaces
	Objects   *objectcache.Cache
	Retainer  Retainer
	// Fixed are the kinds that are always in the cache.
	Fixed map[kinds.ID]*kinds.Spec
	// Enqueue asks for a comparison of an object, or of a marker, at a node. It is urgent if the object, or what the node was
	// granted, has changed.
	Enqueue func(*Node, wire.Key, controllers.Priority)
	Log     *zap.Logger
}

// Book keeps the scopes of all nodes. It has no lock of its own; the caller serializes all calls.
type Book struct {
	cfg Config
	// subscribers are the nodes with scopes.
	subscribers scopeSubscribers
	// fills counts how often a scope was filled.
	fills uint64
}

// NewBook creates a Book without nodes.
func NewBook(cfg Config) *Book { return &Book{cfg: cfg, subscribers: scopeSubscribers{}} }

// Fills returns how often a scope was filled, for Reconciled.
func (b *Book) Fills() uint64 { return b.fills }

// Refresh updates a node's scopes. resumed: another replica or term served the node before, so a marker in the
// stream is valid unless there is evidence against it.
func (b *Book) Refresh(n *Node, resumed bool) error {
	granted, told, err := b.grantedScopes(n)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotLoaded, err)
	}
	n.loaded = n.loaded || told
	next := make(map[scopeID]wire.ScopeKind, len(granted))
	for _, kind := range granted {
		if !b.cfg.Protected.Contains(kind.Namespace) { // granted before the namespace was protected
			next[scopeIDOf(kind.Scope)] = kind
		}
	}
	b.addServices(n, next, told)
	for id, sc := range n.scopes {
		if kind, ok := next[id]; told && (!ok || kind != sc.kind) {
			b.endScope(n, id)
			b.cfg.Enqueue(n, id.toScope().Marker(), controllers.Urgent) // the scope's objects are removed after it: see sweepScope
		}
	}
	for id, kind := range next {
		if n.scopes[id] == nil {
			b.beginScope(n, id, kind, resumed)
		}
	}
	return nil
}

// grantedScopes returns the scopes that a node requested and was granted.
func (b *Book) grantedScopes(n *Node) (granted []wire.ScopeKind, told bool, err error) {
	if b.cfg.Source == nil {
		return nil, true, nil
	}
	return b.cfg.Source(n.name)
}

func (b *Book) beginScope(n *Node, id scopeID, kind wire.ScopeKind, resumed bool) {
	if n.scopes == nil {
		n.scopes = map[scopeID]*grantedScope{}
	}
	sc := &grantedScope{kind: kind, withdrawn: !resumed}
	n.scopes[id] = sc
	b.subscribers.add(id, n)
	if b.cfg.Fixed[id.ID] == nil {
		b.cfg.Retainer.Retain(id.ID, schema.GroupVersionKind{Group: kind.Group, Version: kind.Version, Kind: kind.Kind})
	}
	if !resumed { // otherwise the load enqueues all objects
		b.cfg.Enqueue(n, id.toScope().Marker(), controllers.Background)
		b.fillScope(n, id, sc)
	}
}

func (b *Book) endScope(n *Node, id scopeID) {
	delete(n.scopes, id)
	b.subscribers.remove(id, n)
	if b.cfg.Fixed[id.ID] == nil {
		b.cfg.Retainer.Release(id.ID)
	}
}

// EndAll ends the scopes of a node.
func (b *Book) EndAll(n *Node) {
	for id := range n.scopes {
		b.endScope(n, id)
	}
	n.loaded = false
}

// FillAll fills the scopes of a node again and adds their markers, and the objects that these wait for, to keys.
func (b *Book) FillAll(n *Node, keys map[wire.Key]struct{}) {
	for id, sc := range n.scopes {
		b.fillScope(n, id, sc)
		keys[id.toScope().Marker()] = struct{}{}
		maps.Copy(keys, sc.waiting)
	}
}

// fillScope enqueues each object of a scope, and each that the stream holds of it, and records that the marker waits
// for them.
func (b *Book) fillScope(n *Node, id scopeID, sc *grantedScope) {
	sc.filled, sc.waiting = false, nil
	born, ok := b.objectsOf(id)
	if !ok {
		return // Refill fills it once the kind is synced
	}
	maps.DeleteFunc(born, func(key wire.Key, _ time.Time) bool { return b.cfg.Protected.Contains(key.Namespace) })
	sc.waiting = make(map[wire.Key]struct{}, len(born))
	for key := range born {
		sc.waiting[key] = struct{}{}
	}
	b.fills++
	sc.filled, sc.fillNumber = true, b.fills
	marker := id.toScope().Marker()
	if b.cfg.Objects.DropWithheld(n.name, id.ID, born); n.published.MarkerStale(marker, born) {
		sc.withdrawn = true
		b.cfg.Enqueue(n, marker, controllers.Urgent)
	}
	for key := range sc.waiting {
		b.cfg.Enqueue(n, key, controllers.Background)
	}
	// Objects that were deleted while the kind was not synced are in no cache: they are found in what the stream holds.
	for _, key := range n.published.Covered(sc.kind.Scope) {
		if _, there := sc.waiting[key]; !there {
			b.cfg.Enqueue(n, key, controllers.Background)
		}
	}
	if len(sc.waiting) == 0 {
		b.cfg.Enqueue(n, marker, controllers.Background)
	}
}

// objectsOf returns when each of a scope's objects in the cache was created; ok is false while its kind is not synced.
func (b *Book) objectsOf(id scopeID) (created map[wire.Key]time.Time, ok bool) {
	k, ok := b.cfg.Objects.Kind(id.ID)
	if !ok {
		return nil, false
	}
	created, err := k.InScope(id.namespace)
	if err != nil {
		b.cfg.Log.Error("objects of scope not listed", zap.String("scope", id.toScope().String()), zap.Error(err))
		return nil, false
	}
	return created, true
}

// Refill fills the scopes of a newly synced kind.
func (b *Book) Refill(kind kinds.ID) {
	for id, n := range b.ofKind(kind) {
		b.fillScope(n, id, n.scopes[id])
	}
}

// Empty records that it is not known any more which objects of a kind exist.
func (b *Book) Empty(kind kinds.ID) {
	for id, n := range b.ofKind(kind) {
		n.scopes[id].filled = false
	}
}

// ofKind yields each scope on a kind, and its node.
func (b *Book) ofKind(kind kinds.ID) iter.Seq2[scopeID, *Node] {
	return func(yield func(scopeID, *Node) bool) {
		for namespace, nodes := range b.subscribers[kind] {
			for n := range nodes {
				if !yield(scopeID{kind, namespace}, n) {
					return
				}
			}
		}
	}
}

// EnqueueScoped enqueues an object at each node that has a scope on it.
func (b *Book) EnqueueScoped(key wire.Key) {
	byNamespace := b.subscribers[kinds.Of(key)]
	for n := range byNamespace[""] {
		b.cfg.Enqueue(n, key, controllers.Urgent)
	}
	if key.Namespace == "" {
		return
	}
	for n := range byNamespace[key.Namespace] {
		b.cfg.Enqueue(n, key, controllers.Urgent)
	}
}

// Reconciled records that the stream holds the desired state of an object, or of a marker, as decided when
// Fills was fills. gone says that the node is.
func (b *Book) Reconciled(n *Node, key wire.Key, fills uint64, gone bool) {
	if marked, ok := wire.ScopeOf(key); ok {
		b.sweepScope(n, marked, gone)
		b.renewMarker(n, marked)
	}
	if b.servicesMoved(n, key, gone) {
		return
	}
	for _, id := range coveringScopes(key) {
		sc := n.scopes[id]
		if sc == nil || sc.fillNumber > fills {
			continue
		}
		if _, waits := sc.waiting[key]; !waits {
			continue
		}
		if delete(sc.waiting, key); sc.complete() {
			sc.waiting = nil // an emptied map keeps its memory
			b.cfg.Enqueue(n, id.toScope().Marker(), controllers.Background)
		}
	}
}

// renewMarker enqueues the marker of a scope that lacks nothing else, once one that was not valid is removed.
func (b *Book) renewMarker(n *Node, of wire.Scope) {
	if sc := n.scopes[scopeIDOf(of)]; sc != nil && sc.withdrawn && sc.complete() && !n.published.Holds(of.Marker()) {
		b.cfg.Enqueue(n, of.Marker(), controllers.Background)
	}
}

// sweepScope enqueues the objects of a scope that has ended, once its marker is gone: a node must never take the
// remaining objects for the whole scope.
func (b *Book) sweepScope(n *Node, ended wire.Scope, gone bool) {
	if n.scopes[scopeIDOf(ended)] != nil && !gone {
		return
	}
	for _, key := range n.published.Leftover(ended) {
		b.cfg.Enqueue(n, key, controllers.Background)
	}
}

// Marker returns the desired state of a scope's marker: a payload, or nothing, unless keep.
func (b *Book) Marker(n *Node, of wire.Scope, gone bool) (want *payload.Payload, keep bool, err error) {
	sc := n.scopes[scopeIDOf(of)]
	switch {
	case gone:
		return nil, false, nil
	case sc == nil:
		return nil, !n.loaded, nil
	case sc.withdrawn && n.published.Holds(of.Marker()):
		return nil, false, nil
	case !sc.complete():
		return nil, !sc.withdrawn, nil
	}
	sc.withdrawn = false
	object, err := json.Marshal(sc.kind.Mark())
	if err != nil {
		return nil, true, fmt.Errorf("encode the marker of %s: %w", sc.kind.String(), err)
	}
	return &payload.Payload{Version: "1", Digest: "1-" + sc.kind.Version + "-" + sc.kind.Kind, Object: object}, false, nil
}
