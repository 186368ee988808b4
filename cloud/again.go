package cloud

import (
	"context"
	"math/rand/v2"
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
	// askAgainMost bounds what is remembered. Beyond it the hourly report of each node has to do.
	askAgainMost = 100_000
)

// again asks nodes, some time after their reports were given up, for the state of the objects. What this process has in
// mind is lost with it; then the node's own hourly report repairs it.
type again struct {
	nudge func(node string, key wire.Key) error
	after time.Duration
	queue workqueue.TypedDelayingInterface[request]
	log   *zap.Logger
}

type request struct {
	node string
	key  wire.Key
}

func newAgain(nudge func(node string, key wire.Key) error, log *zap.Logger) *again {
	return &again{nudge: nudge, after: askAgain, queue: workqueue.NewTypedDelayingQueue[request](), log: log}
}

// later remembers to ask for an object. It does not block.
func (a *again) later(m wire.Message) {
	if a.queue.Len() < askAgainMost {
		a.queue.AddAfter(request{m.Node, m.Key}, a.after+rand.N(a.after/2)) //nolint:gosec // not a secret
	}
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
			if err := a.nudge(r.node, r.key); err != nil {
				a.log.Warn("node not asked to report again", zap.String("node", r.node), zap.Error(err))
			}
			a.queue.Done(r)
		}
	})
	return g.Wait()
}
