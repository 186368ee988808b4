package flow

import (
	"maps"
	"sync"
	"time"
)

const (
	// MaxDeferredReports and MaxDeferredEvents limit the objects and the events of one node that may be deferred: far more than a gateway
	// has pods, and more than its outbox has events of the usual size. A stream delivers its messages in order, and only a limited number
	// at a time, so all other nodes wait behind a node that has more.
	MaxDeferredReports = 2048
	// MaxDeferredEvents is MaxDeferredReports for events.
	MaxDeferredEvents = 16384
	// deferExpiry is how long a deferred message counts: it is redelivered after a second, here or to another cloudcore. A node without
	// counted messages is treated like any other again.
	deferExpiry = 5 * time.Second
)

// OverflowTracker tracks the deferred messages of each node, to distinguish a node with many reports from one that floods the stream.
//
// The oldest messages of a node cannot simply be purged from the stream: nats-server 2.15.2 then forgets messages of other nodes that wait
// for redelivery.
type OverflowTracker struct {
	limit int

	mu        sync.Mutex
	nodes     map[string]*nodeOverflow // guarded by mu; by the node's subject token
	lastSweep time.Time                // guarded by mu
}

// nodeOverflow holds the deferred messages of one node.
type nodeOverflow struct {
	subjects     map[string]time.Time // when each was last deferred
	lastDeferred time.Time            // when the node last had one deferred or dropped
	reported     bool
}

// NewOverflowTracker returns a tracker of at most so many deferred messages.
func NewOverflowTracker(most int) *OverflowTracker {
	return &OverflowTracker{limit: most, nodes: map[string]*nodeOverflow{}}
}

// DeferMessage records that a message is to be deferred. over reports that it exceeds the limit, which is never so for a message that was
// deferred before. first reports that no message of the node exceeded it before.
func (f *OverflowTracker) DeferMessage(node, subject string, now time.Time) (over, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removeExpired(now)
	c := f.nodes[node]
	if c == nil {
		c = &nodeOverflow{subjects: map[string]time.Time{}}
		f.nodes[node] = c
	}
	c.lastDeferred = now
	if _, known := c.subjects[subject]; known || len(c.subjects) < f.limit {
		c.subjects[subject] = now
		return false, false
	}
	first, c.reported = !c.reported, true
	return true, first
}

// AdmitMessage records that a message is being handled, and so no longer deferred.
func (f *OverflowTracker) AdmitMessage(node, subject string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.nodes[node]; c != nil {
		delete(c.subjects, subject)
	}
}

// removeExpired removes messages that were deferred and not redelivered. The caller holds mu.
func (f *OverflowTracker) removeExpired(now time.Time) {
	if now.Sub(f.lastSweep) < time.Second {
		return
	}
	f.lastSweep = now
	for name, c := range f.nodes {
		if now.Sub(c.lastDeferred) >= deferExpiry {
			delete(f.nodes, name)
			continue
		}
		maps.DeleteFunc(c.subjects, func(_ string, last time.Time) bool { return now.Sub(last) >= deferExpiry })
	}
}
