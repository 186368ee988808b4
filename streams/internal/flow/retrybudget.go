package flow

import (
	"fmt"
	"sync"
	"time"
)

const (
	// maxRefusedFor is how long Kubernetes may refuse the reports of an object before they are given up: longer than a role is missing for
	// a moment, short enough that reports do not pile up.
	maxRefusedFor = 10 * time.Minute
	// maxRefusedPerNode limits the objects of one node that may be refused at a time; the next one is given up at once.
	maxRefusedPerNode = 32
)

// RetryBudget tracks the objects whose reports Kubernetes refuses, and since when. A refused report is redelivered again and again, and
// while it waits it takes one place of a window that all nodes share.
type RetryBudget struct {
	maxAge              time.Duration
	limitPerNode, limit int

	mu    sync.Mutex
	nodes map[string]map[string]*refusedObject // guarded by mu; by node and subject
	count int                                  // guarded by mu; of all nodes
}

type refusedObject struct{ first, last time.Time }

// NewRetryBudget returns a budget for at most total refused objects of all nodes.
func NewRetryBudget(total int) *RetryBudget {
	return &RetryBudget{maxAge: maxRefusedFor, limitPerNode: maxRefusedPerNode, limit: total, nodes: map[string]map[string]*refusedObject{}}
}

// RecordRefusal counts a refusal; an error means that the report is to be given up, and why.
func (r *RetryBudget) RecordRefusal(node, subject string, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	objects := r.nodes[node]
	known := objects[subject]
	switch {
	case known != nil && now.Sub(known.first) >= r.maxAge:
		r.remove(node, subject)
		return fmt.Errorf("refused for %s", now.Sub(known.first).Round(time.Second))
	case known != nil:
		known.last = now
		return nil
	}
	for other, seen := range objects {
		if now.Sub(seen.last) >= r.maxAge {
			r.remove(node, other) // another cloudcore has settled it
		}
	}
	if len(objects) >= r.limitPerNode || r.count >= r.limit {
		return fmt.Errorf("refused, and so are %d other objects of the node, %d of all", len(objects), r.count)
	}
	if objects = r.nodes[node]; objects == nil {
		objects = map[string]*refusedObject{}
		r.nodes[node] = objects
	}
	objects[subject] = &refusedObject{first: now, last: now}
	r.count++
	return nil
}

// Reset removes an object whose report was accepted or can never be.
func (r *RetryBudget) Reset(node, subject string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(node, subject)
}

// remove removes one object. The caller holds mu.
func (r *RetryBudget) remove(node, subject string) {
	objects := r.nodes[node]
	if _, ok := objects[subject]; !ok {
		return
	}
	delete(objects, subject)
	r.count--
	if len(objects) == 0 {
		delete(r.nodes, node)
	}
}
