package desired

import (
	"encoding/json"

	"go.uber.org/zap"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/objectcache"
)

// kindFollower updates the table when a kind that is not fixed comes or goes.
type kindFollower struct {
	*nodeTable
	// delivered returns the optional kinds of which it is known whether nodes get them.
	delivered func() []wire.DeliveredKind
}

// KindSynced implements kindsync.Follower: it adds the nodes' objects of an optional kind to the graph, before anything is
// decided about them, and enqueues what the stream holds of the kind.
func (f kindFollower) KindSynced(k objectcache.Kind) toolscache.ResourceEventHandler {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects.Add(k)
	if k.ScopedOnly {
		return f.eventHandler(k.Spec)
	}
	for _, s := range f.nodes {
		f.needs.PlaceOfNode(k, s.name, s)
	}
	if k.Signer != nil {
		f.needs.RefreshSelections()
	}
	for id, o := range f.optional {
		if id == k.ID() || o.Referrer == k.ID() {
			f.repairPublished(id)
		}
	}
	return f.eventHandler(k.Spec)
}

// repairPublished enqueues what the stream holds of a kind for each node: objects that were deleted, or whose last referrer
// was, while a kind was not synced are found there. The caller holds mu.
func (f kindFollower) repairPublished(id kinds.ID) {
	for _, s := range f.nodes {
		f.work.Repair(s.work, s.published.Covered(wire.Scope{Group: id.Group, Resource: id.Resource})...)
	}
}

// KindFollowed implements kindsync.Follower.
func (f kindFollower) KindFollowed(id kinds.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.scopes.Refill(id)
}

// KindUnsynced implements kindsync.Follower.
func (f kindFollower) KindUnsynced(id kinds.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects.Remove(id)
	f.scopes.Empty(id)
}

// DeliveredChanged implements kindsync.Follower: it updates the object that tells nodes which optional kinds they get.
func (f kindFollower) DeliveredChanged() {
	f.mu.Lock()
	defer f.mu.Unlock()
	object, err := json.Marshal(wire.NewDeliveredKinds(f.delivered()))
	if err != nil {
		f.log.Error("delivered kinds not encoded", zap.Error(err))
		return
	}
	f.setStatic(wire.DeliveredKindsKey(), object)
}

// auditedNodes is what streamaudit sees of the table.
type auditedNodes struct{ *nodeTable }

// Loaded implements streamaudit.Nodes.
func (a auditedNodes) Loaded() []string {
	return a.names(func(s *nodeState) bool { return s.published.Loaded() })
}

// LastSequence implements streamaudit.Nodes.
func (a auditedNodes) LastSequence(node string) (top uint64, known bool) {
	s := a.lookup(node)
	if s == nil {
		return 0, false
	}
	return s.published.LastSequence()
}

// Reload implements streamaudit.Nodes.
func (a auditedNodes) Reload(node string) { a.load(node) }
