package cloud

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/workqueue"

	"github.com/frond-edge/frond/api/wire"
)

const (
	// askAgain is when a node is asked again for a report that Kubernetes refused for too long: nothing is lost by it, as
	// the node keeps the present state. Half of it is added at random.
	askAgain = 10 * time.Minute
	// askAgainMost bounds the objects that are remembered, and askAgainPerNode those of one node: a flood gives up each of its
	// reports. A node that has more is remembered once, and asked for everything.
	askAgainMost    = 4096
	askAgainPerNode = 256
)

// again asks nodes, some time after their reports were given up, for the state of the objects. What this process has in
// mind is lost with it; then the node's own hourly report repairs it.
type again struct {
	nudge func(node string, key wire.Key) error
	all   func(node string) error
	after time.Duration
	queue workqueue.TypedDelayingInterface[request] // its Len leaves out what is delayed
	log   *zap.Logger

	mu     sync.Mutex
	wanted map[string]map[request]struct{} // guarded by mu; by node, what the queue holds
	total  int                             // guarded by mu; of all nodes
}

// request is for one object of a node, or with no key for everything.
type request struct {
	node string
	key  wire.Key
}

func newAgain(nudge func(node string, key wire.Key) error, all func(node string) error, log *zap.Logger) *again {
	return &again{
		nudge: nudge, all: all, after: askAgain, queue: workqueue.NewTypedDelayingQueue[request](), log: log,
		wanted: map[string]map[request]struct{}{},
	}
}

// later remembers to ask for an object. It does not block.
func (a *again) later(m wire.Message) {
	if r, news := a.want(request{m.Node, m.Key}); news {
		a.queue.AddAfter(r, a.after+rand.N(a.after/2)) //nolint:gosec // not a secret
	}
}

// want notes what is to be asked: the request, or one for everything where there is no room for it. news says that it, or
// one for everything, was not noted before.
func (a *again) want(r request) (noted request, news bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of, everything := a.wanted[r.node], request{node: r.node}
	for _, known := range []request{r, everything} {
		if _, there := of[known]; there {
			return known, false
		}
	}
	if len(of) >= askAgainPerNode || a.total >= askAgainMost {
		r = everything
	}
	if of == nil {
		of = map[request]struct{}{}
		a.wanted[r.node] = of
	}
	of[r] = struct{}{}
	a.total++
	return r, true
}

// ask asks for what is due. It is forgotten first, as what is given up from here on is newer.
func (a *again) ask(r request) error {
	a.mu.Lock()
	delete(a.wanted[r.node], r)
	if len(a.wanted[r.node]) == 0 {
		delete(a.wanted, r.node)
	}
	a.total--
	a.mu.Unlock()
	if r == (request{node: r.node}) {
		return a.all(r.node)
	}
	return a.nudge(r.node, r.key)
}

// Start asks until ctx ends and then returns nil.
func (a *again) Start(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		<-gctx.Done()
		a.queue.ShutDown()
		return nil
	})
	g.Go(func() error {
		for {
			r, end := a.queue.Get()
			if end {
				return nil
			}
			if err := a.ask(r); err != nil {
				a.log.Warn("node not asked to report again", zap.String("node", r.node), zap.Error(err))
			}
			a.queue.Done(r)
		}
	})
	return g.Wait()
}
