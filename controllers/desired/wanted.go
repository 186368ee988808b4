package desired

import (
	"maps"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/desired/dispatch"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/objectcache"
	"github.com/frond-edge/frond/controllers/desired/payload"
	"github.com/frond-edge/frond/internal/failpoint"
)

// decisions is what the workers ask of the table, and tell it.
type decisions struct{ *nodeTable }

// need is what a node is to have of one object, as far as nodeTable decides it.
type need struct {
	// needed: the node is to have the object if it exists.
	needed bool
	// keep: what the node has of it stays.
	keep bool
	// gone: the node is, and is to have nothing.
	gone bool
	// own is the state of an object that Frond itself makes.
	own *payload.Payload
}

// needOf returns what a node is to have of an object. It reports the first need of a withheld one.
func (t decisions) needOf(s *nodeState, key wire.Key) (need, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kindNotSynced(kinds.Of(key)) {
		return need{keep: true}, objectcache.ErrKindNotSynced
	}
	n := need{gone: s.gone(t.cfg)}
	n.keep = !n.gone && (!s.present || t.kindNotSynced(t.optional[kinds.Of(key)].Referrer))
	needed := t.needs.Needs(s, key)
	_, all := t.everywhere[key]
	n.needed = needed || all || s.grants.Covers(key)
	t.withheld.Update(s.name, &s.withheld, key, needed && !n.gone, func() wire.Key { return t.needs.Referrer(s, key) })
	own, keep, err := t.ownState(s, key, n.gone)
	n.own, n.keep = own, n.keep || keep
	return n, err
}

// kindNotSynced reports whether a kind is an optional one that is not synced now: then nothing about its objects is decided,
// and it is not known which objects they reference.
func (t decisions) kindNotSynced(kind kinds.ID) bool {
	if _, optional := t.optional[kind]; !optional {
		return false
	}
	_, synced := t.objects.Kind(kind)
	return !synced
}

// ownState returns the desired state of objects that Frond itself makes: nothing for any other key. The caller holds mu.
func (t decisions) ownState(s *nodeState, key wire.Key, gone bool) (want *payload.Payload, keep bool, err error) {
	if of, ok := wire.ScopeOf(key); ok {
		return t.scopes.Marker(s.grants, of, gone)
	}
	if key == wire.ServicesByNeedKey() {
		return t.scopes.ServicesMark(s.grants, gone)
	}
	if !kinds.IsStatic(key) || gone {
		return nil, false, nil
	}
	p, ok := t.static[key]
	if !ok {
		return nil, true, nil
	}
	return &p, false, nil
}

// setStatic implements Engine.SetStatic. The caller holds mu.
func (t *nodeTable) setStatic(key wire.Key, object []byte) {
	p := payload.OfStatic(object)
	if t.static[key].Digest == p.Digest {
		return
	}
	t.static[key] = p
	t.setEverywhere(key, true)
	t.spreadChange(key)
}

// sum adds up the results of a function for each node, for a metric.
func (t *nodeTable) sum(of func(*nodeState) int) float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, s := range t.nodes {
		n += of(s)
	}
	return float64(n)
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// spread enqueues a paced object that has changed.
func (t decisions) spread(key wire.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spreadChange(key)
}

// begin begins to process an item: it returns the item's node and the count of filled scopes. The node is nil if this replica
// does not own it, or has to load it first, for which begin asks.
func (t decisions) begin(it dispatch.Item, p controllers.Priority) (s *nodeState, fills uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, _, loaded := t.owned(it.Node)
	if s != nil && !loaded {
		t.work.LoadFirst(it, p)
		return nil, 0
	}
	return s, t.scopes.Fills()
}

// beginLoad begins the load of a node that this replica owns; nil: it does not. resumed: the node was not loaded in this term.
func (t decisions) beginLoad(n *dispatch.Node) (s *nodeState, term uint64, resumed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, term, loaded := t.owned(n)
	return s, term, !loaded
}

// owned returns a node, nil if this replica does not own it, the term of ownership, and whether the node is loaded for that
// term. The caller holds mu.
func (t decisions) owned(n *dispatch.Node) (s *nodeState, term uint64, loaded bool) {
	s = t.nodes[n.Name()]
	if s == nil || s.work != n { // retired meanwhile
		return nil, 0, false
	}
	if term = t.owner.Term(s.name); term == 0 {
		t.dropNode(s)
		return nil, 0, false
	}
	return s, term, s.renewTerm(term)
}

// enqueueAll ends a load: it enqueues each object that is published to a node or that it is to have, given what the stream
// holds for it.
func (t decisions) enqueueAll(s *nodeState, held map[wire.Key]wire.Message, resumed bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.scopes.Refresh(s.grants, resumed); err != nil {
		s.forgetPublished()
		return err
	}
	keys := make(map[wire.Key]struct{}, len(held)+t.needs.Count(s)+len(t.everywhere))
	alive := false
	for key, m := range held {
		keys[key] = struct{}{}
		alive = alive || m.Op != wire.Delete
	}
	if s.gone(t.cfg) {
		t.retireNode(s, alive)
	} else {
		t.addWanted(s, keys)
	}
	delete(keys, wire.SnapshotMarker())
	if len(keys) == 0 {
		s.published.SetPending(nil)
		t.work.Repair(s.work, wire.SnapshotMarker())
	} else {
		s.published.SetPending(maps.Clone(keys))
	}
	t.work.CompareAll(s.work, keys)
	failpoint.At("takeover.asked")
	return nil
}

// addWanted adds the objects that a node is to have. The caller holds mu.
func (t decisions) addWanted(s *nodeState, keys map[wire.Key]struct{}) {
	for key := range t.needs.Objects(s) {
		if !kinds.IsVirtual(key) {
			keys[key] = struct{}{}
		}
	}
	maps.Copy(keys, t.everywhere)
	keys[wire.ServicesByNeedKey()] = struct{}{}
	t.scopes.FillAll(s.grants, keys)
}

// recordReconciled records that the stream holds the desired state of an object at a node, as decided when the count of
// filled scopes was fills.
func (t decisions) recordReconciled(s *nodeState, key wire.Key, fills uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.scopes.Reconciled(s.grants, key, fills, s.gone(t.cfg))
}
