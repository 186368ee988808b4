package streams

import (
	"maps"
	"sync"
	"time"
)

const (
	// maxDeferredReports and maxDeferredEvents are of how many objects of one node, and how many of its events, may be put off: far more than a
	// gateway has pods, and more than its outbox has events of the usual size. A stream gives its messages out in order, and only so
	// many at a time, so all others wait behind those of a node that has more.
	maxDeferredReports = 2048
	maxDeferredEvents  = 16384
	// deferExpiry is how long a message counts that was put off: it comes again after a second, here or to another cloudcore. A node
	// of which none counts is as any other again.
	deferExpiry = 5 * time.Second
)

// overflowTracker remembers which messages of which node are put off, to tell a node that has much to say from one that floods the stream.
//
// The oldest messages of a node cannot simply be purged from the stream: nats-server 2.15.2 then forgets messages of others that
// wait for another delivery.
type overflowTracker struct {
	limit int

	mu        sync.Mutex
	nodes     map[string]*nodeOverflow // guarded by mu; by the token of the node
	lastSweep time.Time                // guarded by mu
}

// nodeOverflow is what one node has put off.
type nodeOverflow struct {
	subjects     map[string]time.Time // when it was, last
	lastDeferred time.Time            // when the node had any put off, or dropped
	reported     bool
}

func newOverflowTracker(most int) *overflowTracker {
	return &overflowTracker{limit: most, nodes: map[string]*nodeOverflow{}}
}

// deferMessage takes down that a message is to be put off. over says that it is one too many, which one that was put off before never
// is, and first that no other was before.
func (f *overflowTracker) deferMessage(node, subject string, now time.Time) (over, first bool) {
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

// admitMessage says that a message is in hand, and so not put off any more.
func (f *overflowTracker) admitMessage(node, subject string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.nodes[node]; c != nil {
		delete(c.subjects, subject)
	}
}

// removeExpired forgets what was put off and did not come again. The caller holds mu.
func (f *overflowTracker) removeExpired(now time.Time) {
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
