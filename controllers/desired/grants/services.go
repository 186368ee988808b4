package grants

import (
	"encoding/json"
	"fmt"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/payload"
)

// A node that has not said that it asks for scopes on Services and EndpointSlices is given the scopes on all of them. The mark
// (wire.ServicesByNeedKey) follows their markers: from then on the node takes nothing for complete without a marker. Only
// after that does a node that asks lose what it does not ask for, and not before what it asks for is complete.

// addServices adds the scopes on all Services and EndpointSlices to those that a node is to have, unless it asks itself and the
// stream holds the mark. While the stream does not hold the markers of all scopes on the kind that the node was granted, it keeps a
// whole one. Nothing is added for a node whose requests are not known but whose stream holds the mark: it has what it had.
func (b *Book) addServices(n *Node, next map[scopeID]wire.ScopeKind, told bool) {
	marked := n.published.Holds(wire.ServicesByNeedKey())
	asks := told && b.cfg.ServicesByNeed != nil && b.cfg.ServicesByNeed(n.name)
	for _, all := range wire.ServiceScopes() {
		id := scopeIDOf(all.Scope)
		_, granted := next[id]
		needsAll := !marked || told && !asks || asks && n.published.Holds(all.Marker()) && !holdsMarkers(n, next, id.ID)
		if needsAll && !granted && b.cfg.Fixed[id.ID] != nil {
			next[id] = all
		}
	}
}

// holdsMarkers reports whether the stream holds the markers of all scopes on a kind.
func holdsMarkers(n *Node, scopes map[scopeID]wire.ScopeKind, kind kinds.ID) bool {
	for id := range scopes {
		if id.ID == kind && !n.published.Holds(id.toScope().Marker()) {
			return false
		}
	}
	return true
}

// servicesMoved continues the move of a node's Services from all to those that it asks for, after the stream has changed: a
// marker is followed by the mark, and the mark by the end of the scopes that nothing asks for. It reports whether the key is that
// of a marker or of the mark.
func (b *Book) servicesMoved(n *Node, key wire.Key, gone bool) bool {
	scope, marker := wire.ScopeOf(key)
	if !marker && key != wire.ServicesByNeedKey() {
		return false
	}
	if gone || marker && !isServiceKind(kinds.ID{Group: scope.Group, Resource: scope.Resource}) {
		return true
	}
	if marker && !n.published.Holds(wire.ServicesByNeedKey()) {
		b.cfg.Enqueue(n, wire.ServicesByNeedKey(), controllers.Background)
		return true
	}
	if err := b.Refresh(n, false); err != nil {
		b.cfg.Log.Warn("scopes not known", zap.String("node", n.name), zap.Error(err))
	}
	return true
}

func isServiceKind(id kinds.ID) bool {
	for _, all := range wire.ServiceScopes() {
		if scopeIDOf(all.Scope).ID == id {
			return true
		}
	}
	return false
}

// ServicesMark returns the desired state of the mark: a payload, or nothing, unless keep. Once the stream holds it, it stays.
func (b *Book) ServicesMark(n *Node, gone bool) (want *payload.Payload, keep bool, err error) {
	if gone {
		return nil, false, nil
	}
	for _, all := range wire.ServiceScopes() {
		if b.cfg.Fixed[scopeIDOf(all.Scope).ID] == nil {
			return nil, true, nil // the replica has no Services
		}
		if !n.published.Holds(all.Marker()) && !n.published.Holds(wire.ServicesByNeedKey()) {
			return nil, true, nil
		}
	}
	object, err := json.Marshal(wire.NewServicesByNeedMark())
	if err != nil {
		return nil, true, fmt.Errorf("encode the mark of Services: %w", err)
	}
	p := payload.OfStatic(object)
	return &p, false, nil
}
