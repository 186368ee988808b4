// Package dispatch decides in which order the desired state of nodes is worked on: what has changed first, then what is
// loaded, compared and repaired.
//
// A change is processed at once if it is known what the stream holds for its node. Otherwise the node's load is urgent, and
// the change waits for that load alone. Loads that nothing waits for, as those after a takeover, are made at a bounded rate
// (loadRate) by workers of their own.
//
// Guarantees: no object at a node is processed by two workers at a time, nor is the load of a node; every load that was asked
// for begins after the call, and is repeated until it succeeds. It decides nothing about objects.
package dispatch

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/desired/kinds"
)

const (
	// loadRate is the number of background loads per second. A load costs the hub about 3 ms of CPU and is followed by the
	// comparison of some 50 objects, about 1 ms here: at this rate a takeover of 33,000 nodes takes 16 s, and leaves the hub
	// and this replica time for changes.
	loadRate = 2000
	// backgroundLoads is the number of concurrent background loads: enough for loadRate at 5 ms each.
	backgroundLoads = 16
	// urgentLoads is the number of concurrent loads of nodes with a change.
	urgentLoads = 32
)

// Item is an object at a node. The zero Key asks for a load of what the stream holds for the node; without a Node it ends an
// interval of Queue.Pace.
type Item struct {
	Node *Node
	Key  wire.Key
}

// Processor does the work.
type Processor interface {
	// ProcessItem processes an object at a node. An item with an error is retried.
	ProcessItem(ctx context.Context, p controllers.Priority, it Item) error
	// LoadNode reads what the stream holds for a node, and calls Queue.CompareAll. A load with an error is retried.
	LoadNode(ctx context.Context, n *Node) error
	// SpreadChange calls Queue.Change for each node of an object, for the changes that Queue.Pace has put off.
	SpreadChange(key wire.Key)
}

// Queue holds the work on all nodes. Work that is added before Open is dropped. Its methods may be called concurrently; Open
// comes before Run.
type Queue struct {
	pace *rate.Limiter

	mu sync.Mutex
	// Guarded by mu, with the fields of all Nodes.

	// items and loads are nil before Open.
	items *controllers.PriorityQueue[Item]
	loads *controllers.PriorityQueue[*Node]
	// following: all nodes that this replica owned at its start were asked for, so that an event means a change.
	following bool
	recent    changeLog
	// paced are the objects with a change within the last paceInterval; true: with a further one, which waits.
	paced map[wire.Key]bool
}

// New creates a Queue.
func New() *Queue {
	return &Queue{pace: rate.NewLimiter(loadRate, backgroundLoads), paced: map[wire.Key]bool{}}
}

// Open begins to accept work. A failed item is retried after first, then after twice as long each time, up to most. The
// caller must call the returned function in the end.
func (q *Queue) Open(first, most time.Duration) (shut func()) {
	items, loads := controllers.NewPriorityQueue[Item](first, most), controllers.NewPriorityQueue[*Node](first, most)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items, q.loads = items, loads
	return func() {
		items.ShutDown()
		loads.ShutDown()
	}
}

// opened returns what Open has made; nil before it.
func (q *Queue) opened() (*controllers.PriorityQueue[Item], *controllers.PriorityQueue[*Node]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.items, q.loads
}

// Run processes the work until ctx ends, with a number of workers for the items of each priority.
func (q *Queue) Run(ctx context.Context, workers int, processor Processor) {
	items, loads := q.opened()
	var both sync.WaitGroup
	both.Go(func() {
		items.Process(ctx, controllers.Workers[Item]{Urgent: workers, Background: workers, Do: func(ctx context.Context, p controllers.Priority, it Item) error {
			switch {
			case it.Node == nil:
				if q.endPace(it.Key) {
					processor.SpreadChange(it.Key)
				}
				return nil
			case it.Key == (wire.Key{}):
				q.Load(it.Node, p)
				return nil
			}
			return processor.ProcessItem(ctx, p, it)
		}})
	})
	both.Go(func() {
		loads.Process(ctx, controllers.Workers[*Node]{
			Urgent: urgentLoads, Background: backgroundLoads,
			Admit: func(ctx context.Context, n *Node) bool { return q.loadWanted(n) && q.pace.Wait(ctx) == nil },
			Do: func(ctx context.Context, p controllers.Priority, n *Node) error {
				if !q.beginLoad(n) {
					return nil
				}
				err := processor.LoadNode(ctx, n)
				q.endLoad(n, p, err != nil)
				return err
			},
		})
	})
	both.Wait()
}

// Follow ends the start: from now on an event is a change. Before, it is one of the objects that all loads compare.
func (q *Queue) Follow() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.following = true
}

// Change enqueues an object of a node after an event. If the stream is to be read first, that is done at once. For a node
// of another replica the change is remembered for a while.
func (q *Queue) Change(n *Node, key wire.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.items == nil || kinds.IsVirtual(key):
	case n.published.Loaded():
		q.items.Add(controllers.Urgent, Item{Node: n, Key: key})
	case q.following && !q.hasten(n, key):
		q.recent.add(n, key, time.Now())
	}
}

// hasten makes a change come first after the load of its node, and a load that has not begun urgent. It returns false if
// none was asked for. The caller holds mu.
func (q *Queue) hasten(n *Node, key wire.Key) bool {
	if n.loadWanted || n.loading {
		n.addChanged(key)
	}
	if n.loadWanted {
		q.loads.Add(controllers.Urgent, n)
	}
	return n.loadWanted || n.loading
}

// Repair enqueues objects of a node without an event, if it is known what the stream holds.
func (q *Queue) Repair(n *Node, keys ...wire.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.items == nil || !n.published.Loaded() {
		return
	}
	for _, key := range keys {
		if !kinds.IsVirtual(key) {
			q.items.Add(controllers.Background, Item{Node: n, Key: key})
		}
	}
}

// Load asks for a load of what the stream holds for a node.
func (q *Queue) Load(n *Node, p controllers.Priority) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.load(n, p)
}

// load implements Load. The caller holds mu.
func (q *Queue) load(n *Node, p controllers.Priority) {
	if q.loads == nil {
		return
	}
	n.loadWanted = true
	if !q.following {
		p = controllers.Background
	}
	q.loads.Add(p, n)
}

// LoadFirst asks for the load of the node of an item. The item is processed after it, an urgent one before the others.
func (q *Queue) LoadFirst(it Item, p controllers.Priority) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if p == controllers.Urgent {
		it.Node.addChanged(it.Key)
	}
	q.load(it.Node, p)
}

// RetryAfterLoad asks for another load of the node of an item that has failed, after a delay.
func (q *Queue) RetryAfterLoad(it Item, p controllers.Priority) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if p == controllers.Urgent {
		it.Node.addChanged(it.Key)
	}
	q.items.AddRateLimited(p, Item{Node: it.Node})
}

// RecentlyChanged returns the nodes of other replicas that have changed within the last recentPeriod, in the order of their
// changes.
func (q *Queue) RecentlyChanged() []*Node {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.recent.nodesSince(time.Now().Add(-recentPeriod))
}

// HastenLoads makes the loads urgent of those nodes that await one and that changed within the last recentPeriod, while
// another replica owned them.
func (q *Queue) HastenLoads() {
	q.mu.Lock()
	defer q.mu.Unlock()
	var others changeLog
	for _, c := range q.recent.since(time.Now().Add(-recentPeriod)) {
		switch {
		case c.node.published.Loaded():
			q.items.Add(controllers.Urgent, Item{Node: c.node, Key: c.key})
		case !q.hasten(c.node, c.key):
			others.changes = append(others.changes, c)
		}
	}
	q.recent = others
}

// CompareAll ends a load that succeeded: it enqueues the objects to compare, and before them those that have changed meanwhile.
func (q *Queue) CompareAll(n *Node, keys map[wire.Key]struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, key := range n.changed {
		q.items.Add(controllers.Urgent, Item{Node: n, Key: key})
	}
	for key := range keys {
		if !kinds.IsVirtual(key) && !slices.Contains(n.changed, key) {
			q.items.Add(controllers.Background, Item{Node: n, Key: key})
		}
	}
	n.changed = nil
}

// Release drops what waits for a node's load: another replica owns the node.
func (q *Queue) Release(n *Node) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n.loadWanted, n.changed = false, nil
}

// AddAfter adds an item after a delay, unless the queue is not open yet.
func (q *Queue) AddAfter(p controllers.Priority, it Item, after time.Duration) {
	if items, _ := q.opened(); items != nil {
		items.AddAfter(p, it, after)
	}
}

// Len returns the number of objects to process.
func (q *Queue) Len() int {
	if items, _ := q.opened(); items != nil {
		return items.Len()
	}
	return 0
}

// AwaitsLoad reports whether it is not known yet what the stream holds for a node, and a load was asked for.
func (q *Queue) AwaitsLoad(n *Node) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return (n.loadWanted || n.loading) && !n.published.Loaded()
}

func (q *Queue) loadWanted(n *Node) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return n.loadWanted
}

// beginLoad begins a load; false: none is asked for any more.
func (q *Queue) beginLoad(n *Node) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !n.loadWanted {
		return false
	}
	n.loadWanted, n.loading = false, true
	return true
}

// endLoad ends a load. One that failed is retried; changes that came meanwhile make that urgent.
func (q *Queue) endLoad(n *Node, p controllers.Priority, failed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n.loading = false
	if !failed {
		return
	}
	n.loadWanted = true
	if p == controllers.Background && len(n.changed) > 0 {
		q.loads.AddRateLimited(controllers.Urgent, n)
	}
}
