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
	// rereportDelay is when a node is asked again for a report that Kubernetes refused for too long: nothing is lost by it, as
	// the node keeps the present state. Half of it is added at random.
	rereportDelay = 10 * time.Minute
	// rereportMax bounds the objects that are remembered, and rereportMaxPerNode those of one node: a flood gives up each of its
	// reports. A node that has more is remembered once, and asked for everything.
	rereportMax        = 4096
	rereportMaxPerNode = 256
)

// rereportQueue asks nodes, some time after their reports were given up, for the state of the objects. What this process has in
// mind is lost with it; then the node's own hourly report repairs it.
type rereportQueue struct {
	requestReport func(node string, key wire.Key) error
	requestAll    func(node string) error
	delay         time.Duration
	queue         workqueue.TypedDelayingInterface[rereportRequest] // its Len leaves out what is delayed
	log           *zap.Logger

	mu      sync.Mutex
	pending map[string]map[rereportRequest]struct{} // guarded by mu; by node, what the queue holds
	total   int                                     // guarded by mu; of all nodes
}

// rereportRequest is for one object of a node, or with no key for everything.
type rereportRequest struct {
	node string
	key  wire.Key
}

func newRereportQueue(nudge func(node string, key wire.Key) error, all func(node string) error, log *zap.Logger) *rereportQueue {
	return &rereportQueue{
		requestReport: nudge, requestAll: all, delay: rereportDelay, queue: workqueue.NewTypedDelayingQueue[rereportRequest](), log: log,
		pending: map[string]map[rereportRequest]struct{}{},
	}
}

// Schedule remembers to ask for an object. It does not block.
func (a *rereportQueue) Schedule(m wire.Message) {
	if r, news := a.recordRequest(rereportRequest{m.Node, m.Key}); news {
		a.queue.AddAfter(r, a.delay+rand.N(a.delay/2)) //nolint:gosec // not a secret
	}
}

// recordRequest notes what is to be asked: the request, or one for everything where there is no room for it. news says that it, or
// one for everything, was not noted before.
func (a *rereportQueue) recordRequest(r rereportRequest) (noted rereportRequest, news bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of, everything := a.pending[r.node], rereportRequest{node: r.node}
	for _, known := range []rereportRequest{r, everything} {
		if _, there := of[known]; there {
			return known, false
		}
	}
	if len(of) >= rereportMaxPerNode || a.total >= rereportMax {
		r = everything
	}
	if of == nil {
		of = map[rereportRequest]struct{}{}
		a.pending[r.node] = of
	}
	of[r] = struct{}{}
	a.total++
	return r, true
}

// sendRequest asks for what is due. It is forgotten first, as what is given up from here on is newer.
func (a *rereportQueue) sendRequest(r rereportRequest) error {
	a.mu.Lock()
	delete(a.pending[r.node], r)
	if len(a.pending[r.node]) == 0 {
		delete(a.pending, r.node)
	}
	a.total--
	a.mu.Unlock()
	if r == (rereportRequest{node: r.node}) {
		return a.requestAll(r.node)
	}
	return a.requestReport(r.node, r.key)
}

// Start asks until ctx ends and then returns nil.
func (a *rereportQueue) Start(ctx context.Context) error {
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
			if err := a.sendRequest(r); err != nil {
				a.log.Warn("node not asked to report again", zap.String("node", r.node), zap.Error(err))
			}
			a.queue.Done(r)
		}
	})
	return g.Wait()
}
