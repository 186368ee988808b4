package scopes

import (
	"slices"
	"sync"
	"time"

	"github.com/frond-edge/frond/api/wire"
)

// keptUnjudged is how long a user keeps a scope while Kubernetes answers, but not whether the user may have it. It outlasts some
// rounds of judging, and ends what a node would keep after its right is gone by asking for so much that there is no time for it.
const keptUnjudged = 10 * time.Minute

// silence is how long Kubernetes answers nobody until it counts as down.
const silence = time.Minute

// doubts remembers since when rights that nodes use could not be judged. Time in which Kubernetes is down does not count: nobody
// takes a right away in it, and a cluster that is down must not empty its gateways.
type doubts struct {
	mu sync.Mutex
	// Guarded by mu.

	last  time.Time // the last answer to anybody
	nodes map[string]map[question]doubt
}

// doubt is of one user's right to one scope on one node.
type doubt struct {
	since time.Time // it is in doubt, later by what does not count
	tried time.Time // it was asked for last
}

func newDoubts() *doubts { return &doubts{nodes: map[string]map[question]doubt{}} }

// answered notes that Kubernetes answers.
func (d *doubts) answered(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.After(d.last) {
		d.last = now
	}
}

// tell notes that a right was judged, or could not be, and reports whether it has been in doubt for too long.
func (d *doubts) tell(node string, q question, unjudged bool, now time.Time) (lapsed bool) {
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
		d.nodes[node] = map[question]doubt{}
	}
	was, ok := d.nodes[node][q]
	if !ok {
		was = doubt{since: now, tried: now}
	}
	if d.last.Before(was.tried) && now.Sub(d.last) > silence {
		was.since = was.since.Add(now.Sub(was.tried))
	}
	was.tried = now
	d.nodes[node][q] = was
	return now.Sub(was.since) >= keptUnjudged
}

// keepOnly forgets doubts on what a node does not hold.
func (d *doubts) keepOnly(node string, held []grant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for q := range d.nodes[node] {
		if at := indexOf(held, q.scope); at < 0 || !slices.Contains(held[at].Users, q.user) {
			delete(d.nodes[node], q)
		}
	}
	if len(d.nodes[node]) == 0 {
		delete(d.nodes, node)
	}
}

// oldest says since when each scope of a node has been in doubt.
func (d *doubts) oldest(node string) map[wire.Scope]time.Time {
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
