package streams

import (
	"sync"
	"time"
)

const (
	// reportsWaiting and eventsWaiting are of how many objects of one node, and how many of its events, may be put off: far more than a
	// gateway has pods, and more than its outbox has events of the usual size. A stream gives its messages out in order, and only so
	// many at a time, so all others wait behind those of a node that has more.
	reportsWaiting = 2048
	eventsWaiting  = 16384
	// floodOver is how long nothing must have been put off before a node counts as any other again. What is put off comes again after
	// a second.
	floodOver = 5 * time.Second
)

// floods remembers which messages of which node were put off, to tell a node that has much to say from one that floods the stream.
//
// The oldest messages of a node cannot simply be purged from the stream: nats-server 2.15.2 then forgets messages of others that
// wait for another delivery.
type floods struct {
	most int

	mu    sync.Mutex
	nodes map[string]*crowd // guarded by mu; by the token of the node
	swept time.Time         // guarded by mu
}

// crowd is what one node had put off.
type crowd struct {
	subjects map[string]struct{}
	last     time.Time
	told     bool
}

func newFloods(most int) *floods { return &floods{most: most, nodes: map[string]*crowd{}} }

// note takes down that a message is to be put off. over says that it is one too many, and first that no other was before.
func (f *floods) note(node, subject string, now time.Time) (over, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.swept) >= time.Second {
		f.swept = now
		for name, c := range f.nodes {
			if now.Sub(c.last) >= floodOver {
				delete(f.nodes, name)
			}
		}
	}
	c := f.nodes[node]
	if c == nil {
		c = &crowd{subjects: map[string]struct{}{}}
		f.nodes[node] = c
	}
	c.last = now
	if len(c.subjects) < f.most {
		c.subjects[subject] = struct{}{}
		return false, false
	}
	first, c.told = !c.told, true
	return true, first
}
