package scopes

import (
	"slices"
	"sync"
	"time"

	"github.com/frond-edge/frond/api/wire"
)

// undecidedLimit is how long a user keeps a scope while Kubernetes answers, but not about this user's right. It is
// longer than several rounds of evaluation. It also ends the attempt of a node to keep a lost right by requesting so
// much that there is no time to evaluate that right.
const undecidedLimit = 10 * time.Minute

// outageAfter is how long Kubernetes must leave all requests unanswered to count as down.
const outageAfter = time.Minute

// undecidedRights records since when rights in use could not be evaluated. Time in which Kubernetes is down does not
// count: no right is revoked in it, and a cluster that is down must not empty its gateways.
type undecidedRights struct {
	mu sync.Mutex
	// Guarded by mu.

	lastAnswer time.Time // the last answer to any request
	nodes      map[string]map[accessQuery]undecidedRight
}

// undecidedRight is the state of one user's undecided right to one scope on one node.
type undecidedRight struct {
	since     time.Time // begin of the undecided time, moved forward by outages of Kubernetes
	lastTried time.Time // the last attempt to evaluate it
}

func newUndecidedRights() *undecidedRights {
	return &undecidedRights{nodes: map[string]map[accessQuery]undecidedRight{}}
}

// recordAnswer records that Kubernetes answers.
func (d *undecidedRights) recordAnswer(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.After(d.lastAnswer) {
		d.lastAnswer = now
	}
}

// recordResult records that a right was evaluated, or could not be, and reports whether it has been undecided for too long.
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

// retainOnly drops the undecided rights to scopes that a node does not hold.
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

// oldestByScope returns since when each scope of a node has been undecided.
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
