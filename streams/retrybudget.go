package streams

import (
	"fmt"
	"sync"
	"time"
)

const (
	// patience is how long Kubernetes may refuse the reports of an object before they are given up: longer than a role that
	// is missing for a moment, short enough that nothing piles up.
	patience = 10 * time.Minute
	// refusedPerNode is how many objects of one node may be refused at a time before the next is given up at once.
	refusedPerNode = 32
)

// refusals remembers which objects' reports Kubernetes refuses, and since when. A refused report is offered again and
// again, and as long as it waits it takes one place of a window that all nodes share.
type refusals struct {
	patience       time.Duration
	perNode, total int

	mu     sync.Mutex
	nodes  map[string]map[string]*refusal // guarded by mu; by node and subject
	number int                            // guarded by mu; of all nodes
}

type refusal struct{ first, last time.Time }

func newRefusals(total int) *refusals {
	return &refusals{patience: patience, perNode: refusedPerNode, total: total, nodes: map[string]map[string]*refusal{}}
}

// note counts a refusal; an error says that the report is to be given up, and why.
func (r *refusals) note(node, subject string, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	objects := r.nodes[node]
	known := objects[subject]
	switch {
	case known != nil && now.Sub(known.first) >= r.patience:
		r.remove(node, subject)
		return fmt.Errorf("refused for %s", now.Sub(known.first).Round(time.Second))
	case known != nil:
		known.last = now
		return nil
	}
	for other, seen := range objects {
		if now.Sub(seen.last) >= r.patience {
			r.remove(node, other) // another cloudcore has settled it
		}
	}
	if len(objects) >= r.perNode || r.number >= r.total {
		return fmt.Errorf("refused, and so are %d other objects of the node, %d of all", len(objects), r.number)
	}
	if objects = r.nodes[node]; objects == nil {
		objects = map[string]*refusal{}
		r.nodes[node] = objects
	}
	objects[subject] = &refusal{first: now, last: now}
	r.number++
	return nil
}

// settle forgets an object whose report was taken or can never be.
func (r *refusals) settle(node, subject string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(node, subject)
}

// remove forgets one object. The caller holds mu.
func (r *refusals) remove(node, subject string) {
	objects := r.nodes[node]
	if _, ok := objects[subject]; !ok {
		return
	}
	delete(objects, subject)
	r.number--
	if len(objects) == 0 {
		delete(r.nodes, node)
	}
}
