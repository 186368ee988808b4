package desired

import (
	"time"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/desired/deletionguard"
	"github.com/frond-edge/frond/controllers/desired/dispatch"
	"github.com/frond-edge/frond/controllers/desired/published"
)

// deletions asks the deletion guard before a tombstone is published, and carries out its verdicts.
type deletions struct {
	nodes  *nodeTable
	work   evaluationQueue
	policy deletionguard.Policy
}

// evaluationQueue is what deletions asks of a dispatch.Queue.
type evaluationQueue interface {
	Load(n *dispatch.Node, p controllers.Priority)
	AddAfter(p controllers.Priority, it dispatch.Item, after time.Duration)
}

// evaluate evaluates all that a node would lose now.
func (d deletions) evaluate(s *nodeState, now time.Time) deletionguard.Verdict {
	t := d.nodes
	t.mu.Lock()
	defer t.mu.Unlock()
	node, err := t.objects.Get(wire.Key{Resource: "nodes", Name: s.name})
	gone := s.gone(t.cfg)
	in := deletionguard.Input{Now: now, Deleted: gone && err != nil, Pods: s.published.OwnPods()}
	if err == nil {
		in.Hold, in.ConfirmedToken = wire.ParseHold(node.GetAnnotations())
	}
	for key := range in.Pods {
		if t.cfg.Protected.Covers(key) {
			delete(in.Pods, key) // removed on purpose
		}
	}
	in.Alive = func(key wire.Key) bool { return !gone && t.needs.Needs(s, key) && t.objects.HasPod(key) }
	v := s.guard.Evaluate(d.policy, in)
	if v.EvaluateAfter > 0 {
		d.work.AddAfter(controllers.Urgent, dispatch.Item{Node: s.work}, v.EvaluateAfter)
	}
	if v.Release {
		d.work.Load(s.work, controllers.Urgent)
	}
	if v.Changed && t.cfg.OnHold != nil {
		t.cfg.OnHold(s.name, v.Hold)
	}
	return v
}

// reevaluate evaluates a hold again after an object of the node has changed.
func (d deletions) reevaluate(s *nodeState, key wire.Key) {
	if key.Group == "" && (key.Resource == "pods" || key.Resource == "nodes") && s.guard.Held() {
		d.evaluate(s, time.Now())
	}
}

// allowed reports whether an object may be removed from the node now. If not, it is enqueued again when it may.
func (d deletions) allowed(s *nodeState, key wire.Key, held published.Record) bool {
	if published.IsPod(key) && held.DeletionReason.IsFinal() || d.nodes.cfg.Protected.Covers(key) {
		return true
	}
	v := d.evaluate(s, time.Now())
	if v.RetryAfter > 0 {
		d.work.AddAfter(controllers.Urgent, dispatch.Item{Node: s.work, Key: key}, v.RetryAfter)
		return false
	}
	if v.Held {
		s.guard.Defer(key)
	}
	return !v.Held
}
