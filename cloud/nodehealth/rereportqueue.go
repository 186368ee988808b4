package nodehealth

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
	// rereportDelay is the delay before a node is asked again for a report that Kubernetes refused for too long.
	// Nothing is lost by the delay, as the node keeps the present state. A random addition of up to half of it spreads the requests.
	rereportDelay = 10 * time.Minute
	// rereportMax bounds the objects that are remembered, and rereportMaxPerNode those of one node: in an overload each
	// report is given up. A node with more is remembered once, and asked for all reports.
	rereportMax        = 4096
	rereportMaxPerNode = 256
)

// RereportQueue is a delayed queue of report requests: after reports were given up, it asks the nodes for the state of
// the objects. Its content is lost with the process; then the node's own hourly report repairs the state.
type RereportQueue struct {
	requestReport func(node string, key wire.Key) error
	requestAll    func(node string) error
	delay         time.Duration
	queue         workqueue.TypedDelayingInterface[rereportRequest] // its Len leaves out delayed items
	log           *zap.Logger

	mu      sync.Mutex
	pending map[string]map[rereportRequest]struct{} // guarded by mu; by node, the content of the queue
	total   int                                     // guarded by mu; of all nodes
}

// rereportRequest is a request for one object of a node; without a key for all of them.
type rereportRequest struct {
	node string
	key  wire.Key
}

// NewRereportQueue creates the queue. requestReport asks a node for the report of one object and requestAll for all;
// neither blocks.
func NewRereportQueue(requestReport func(node string, key wire.Key) error, requestAll func(node string) error, log *zap.Logger) *RereportQueue {
	return &RereportQueue{
		requestReport: requestReport, requestAll: requestAll, delay: rereportDelay, queue: workqueue.NewTypedDelayingQueue[rereportRequest](), log: log,
		pending: map[string]map[rereportRequest]struct{}{},
	}
}

// Schedule enqueues a request for an object. It does not block.
func (a *RereportQueue) Schedule(m wire.Message) {
	if r, news := a.recordRequest(rereportRequest{m.Node, m.Key}); news {
		a.queue.AddAfter(r, a.delay+rand.N(a.delay/2)) //nolint:gosec // not a secret
	}
}

// recordRequest records a request, or one for all reports if there is no room for it. news reports that neither was
// recorded before.
func (a *RereportQueue) recordRequest(r rereportRequest) (noted rereportRequest, news bool) {
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

// sendRequest sends a request that is due. It is removed first, so that a report that is given up from here on is
// recorded again.
func (a *RereportQueue) sendRequest(r rereportRequest) error {
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

// Start sends requests until ctx ends and then returns nil.
func (a *RereportQueue) Start(ctx context.Context) error {
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
