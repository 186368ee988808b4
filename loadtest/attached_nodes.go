package loadtest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// attachedNodes connects many nodes to one hub server of their own and measures its memory at each of these numbers of nodes, which
// ascend. The nodes are simulated at the protocol level (leafClient). The server, the attaches and the consumers are real; each node has
// objectsEach objects and an open pull.
func attachedNodes(numbers []int, settle time.Duration) scenario {
	return scenario{"attached nodes", func(ctx context.Context, w *Environment) (err error) {
		s := &attachment{}
		if s.server, err = startHub(ctx, numbers[len(numbers)-1]); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.server.close()) }()
		return s.measure(ctx, w, numbers, settle)
	}}
}

// attachment is the hub server and the nodes attached to it.
type attachment struct {
	server    *hubServer
	attached  int
	delivered atomic.Int64
}

const (
	// objectsEach is the number of objects of an ordinary gateway: some pods and the objects they refer to.
	objectsEach = 10
	// maxDialers bounds the concurrent connects and attaches.
	maxDialers = 16
)

// measure attaches more and more nodes. Their connections last until the server is closed.
func (s *attachment) measure(ctx context.Context, w *Environment, numbers []int, settle time.Duration) error {
	const kb, mb, gb = 1e3, 1e6, 1e9
	if err := sleepFor(ctx, settle); err != nil {
		return err
	}
	idle, err := s.server.memoryUse()
	if err != nil {
		return err
	}
	w.record(measure{text: "hub server without nodes: RSS", unit: unitMemory}, float64(idle.rss)/mb)
	cloud, err := s.server.newCloudSide()
	if err != nil {
		return err
	}
	defer cloud.nc.Close()
	var resident []float64
	for _, n := range numbers {
		began := time.Now()
		if err := s.attachNodes(ctx, cloud, n); err != nil {
			return err
		}
		took := time.Since(began)
		if err := sleepFor(ctx, settle); err != nil {
			return err
		}
		now, err := s.server.memoryUse()
		if err != nil {
			return err
		}
		at := fmt.Sprintf("hub server with %d nodes of %d objects", n, objectsEach)
		w.recordLine(measure{text: at + ": RSS", unit: unitMemory}, float64(now.rss)/mb)
		w.recordLine(measure{text: "  a node more than without: RSS", unit: unitSmall}, float64(now.rss-idle.rss)/float64(n)/kb)
		w.recordLine(measure{text: "  of it RssAnon", unit: unitSmall}, float64(now.anonymous-idle.anonymous)/float64(n)/kb)
		w.recordLine(measure{text: "  the last of them attached after", unit: unitTime}, milliseconds(took))
		resident = append(resident, float64(now.rss))
		w.logProgress("%s: %d in %.0f ms, %d MB", w.name, n, milliseconds(took), now.rss/1e6)
	}
	if last := len(numbers) - 1; last > 0 {
		slope := (resident[last] - resident[0]) / float64(numbers[last]-numbers[0])
		w.record(measure{text: "by that slope, 100,000 nodes", unit: unitLarge}, (float64(idle.rss)+slope*100_000)/gb)
	}
	return s.verifyDelivery(ctx, cloud)
}

// attachNodes raises the number of nodes to n.
func (s *attachment) attachNodes(ctx context.Context, cloud *cloudSide, n int) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(maxDialers)
	for ; s.attached < n; s.attached++ {
		node := nodeName(s.attached)
		g.Go(func() error {
			if err := cloud.attachNode(gctx, node); err != nil {
				return fmt.Errorf("attach %s: %w", node, err)
			}
			l, err := s.server.dialNode(gctx, node, &s.delivered)
			if err != nil {
				return fmt.Errorf("connect %s: %w", node, err)
			}
			s.server.leafs.Go(func() error { return l.serve(s.server.ctx) })
			return nil
		})
	}
	return g.Wait()
}

// verifyDelivery changes one object of each node and waits until all nodes have received their change.
func (s *attachment) verifyDelivery(ctx context.Context, cloud *cloudSide) error {
	before := s.delivered.Load()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(maxDialers)
	for i := range s.attached {
		g.Go(func() error { return cloud.publishObject(gctx, nodeName(i), objectsEach) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return waitUntil(ctx, "each node gets a change", func(context.Context) (bool, error) {
		return s.delivered.Load()-before >= int64(s.attached), nil
	})
}
