package streams

import (
	"maps"
	"sync"
	"time"
)

const (
	// reportsWaiting and eventsWaiting are of how many objects of one node, and how many of its events, may be put off: far more than a
	// gateway has pods, and more than its outbox has events of the usual size. A stream gives its messages out in order, and only so
	// many at a time, so all others wait behind those of a node that has more.
	reportsWaiting = 2048
	eventsWaiting  = 16384
	// floodOver is how long a message counts that was put off: it comes again after a second, here or to another cloudcore. A node
	// of which none counts is as any other again.
	floodOver = 5 * time.Second
)

// floods remembers which messages of which node are put off, to tell a node that has much to say from one that floods the stream.
//
// The oldest messages of a node cannot simply be purged from the stream: nats-server 2.15.2 then forgets messages of others that
// wait for another delivery.
type floods struct {
	most int

	mu    sync.Mutex
	nodes map[string]*crowd // guarded by mu; by the token of the node
	swept time.Time         // guarded by mu
}

// crowd is what one node has put off.
type crowd struct {
	subjects map[string]time.Time // when it was, last
	last     time.Time            // when the node had any put off, or dropped
	told     bool
}

func newFloods(most int) *floods { return &floods{most: most, nodes: map[string]*crowd{}} }

// note takes down that a message is to be put off. over says that it is one too many, which one that was put off before never
// is, and first that no other was before.
func (f *floods) note(node, subject string, now time.Time) (over, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sweep(now)
	c := f.nodes[node]
	if c == nil {
		c = &crowd{subjects: map[string]time.Time{}}
		f.nodes[node] = c
	}
	c.last = now
	if _, known := c.subjects[subject]; known || len(c.subjects) < f.most {
		c.subjects[subject] = now
		return false, false
	}
	first, c.told = !c.told, true
	return true, first
}

// taken says that a message is in hand, and so not put off any more.
func (f *floods) taken(node, subject string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.nodes[node]; c != nil {
		delete(c.subjects, subject)
	}
}

// sweep forgets what was put off and did not come again. The caller holds mu.
func (f *floods) sweep(now time.Time) {
	if now.Sub(f.swept) < time.Second {
		return
	}
	f.swept = now
	for name, c := range f.nodes {
		if now.Sub(c.last) >= floodOver {
			delete(f.nodes, name)
			continue
		}
		maps.DeleteFunc(c.subjects, func(_ string, last time.Time) bool { return now.Sub(last) >= floodOver })
	}
}
