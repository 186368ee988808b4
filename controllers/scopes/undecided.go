package scopes

import (
	"slices"
	"sync"
	"time"

	"github.com/frond-edge/frond/api/wire"
)

// undecidedLimit is how long a user keeps a scope while Kubernetes answers, but not whether the user may have it. It outlasts some
// rounds of judging, and ends what a node would keep after its right is gone by asking for so much that there is no time for it.
const undecidedLimit = 10 * time.Minute

// outageAfter is how long Kubernetes answers nobody until it counts as down.
const outageAfter = time.Minute

// undecidedRights remembers since when rights that nodes use could not be judged. Time in which Kubernetes is down does not count: nobody
// takes a right away in it, and a cluster that is down must not empty its gateways.
type undecidedRights struct {
	mu sync.Mutex
	// Guarded by mu.

	lastAnswer time.Time // the last answer to anybody
	nodes      map[string]map[accessQuery]undecidedRight
}

// undecidedRight is of one user's right to one scope on one node.
type undecidedRight struct {
	since     time.Time // it is in doubt, later by what does not count
	lastTried time.Time // it was asked for last
}

func newUndecidedRights() *undecidedRights {
	return &undecidedRights{nodes: map[string]map[accessQuery]undecidedRight{}}
}

// recordAnswer notes that Kubernetes answers.
func (d *undecidedRights) recordAnswer(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.After(d.lastAnswer) {
		d.lastAnswer = now
	}
}

// recordResult notes that a right was judged, or could not be, and reports whether it has been in doubt for too long.
func (d *undecidedRights) recordResult(node string, q accessQuery, unjudged bool, now time.Time) (lapsed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !unjudged {
		delete(d.nodes[node], q)
		if len(d.nodes[node]) == 0 {
			delete(d.nodes, node)
		}
		return false
	}
	if d.nodes[node] == nil {
		d.nodes[node] = map[accessQuery]undecidedRight{}
	}
	was, ok := d.nodes[node][q]
	if !ok {
		was = undecidedRight{since: now, lastTried: now}
	}
	if d.lastAnswer.Before(was.lastTried) && now.Sub(d.lastAnswer) > outageAfter {
		was.since = was.since.Add(now.Sub(was.lastTried))
	}
	was.lastTried = now
	d.nodes[node][q] = was
	return now.Sub(was.since) >= undecidedLimit
}

// retainOnly forgets doubts on what a node does not hold.
func (d *undecidedRights) retainOnly(node string, held []grant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for q := range d.nodes[node] {
		if at := grantIndex(held, q.scope); at < 0 || !slices.Contains(held[at].Users, q.user) {
			delete(d.nodes[node], q)
		}
	}
	if len(d.nodes[node]) == 0 {
		delete(d.nodes, node)
	}
}

// oldestByScope says since when each scope of a node has been in doubt.
func (d *undecidedRights) oldestByScope(node string) map[wire.Scope]time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[wire.Scope]time.Time{}
	for q, of := range d.nodes[node] {
		if at, ok := out[q.scope]; !ok || of.since.Before(at) {
			out[q.scope] = of.since
		}
	}
	return out
}
