package loadtest

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// AttachedNodes connects many nodes to one hub server of their own and measures its memory. The nodes are simulated at the protocol
// level (leafClient). The server, the attaches and the consumers are real; each node has objectsEach objects and an open pull.
type AttachedNodes struct {
	// Nodes are the numbers of nodes at which memory is measured, ascending.
	Nodes []int
	// Settle is the pause before each measurement.
	Settle time.Duration

	server    *hubServer
	attached  int
	delivered atomic.Int64
	idle      memory
	states    []attachedState
}

// attachedState is the measurement at one number of nodes.
type attachedState struct {
	memory
	nodes int
	took  time.Duration
}

const (
	// objectsEach is the number of objects of an ordinary gateway: some pods and the objects they refer to.
	objectsEach = 10
	// maxDialers bounds the concurrent connects and attaches.
	maxDialers = 16
)

// Name returns the name of the scenario.
func (*AttachedNodes) Name() string { return "attached nodes" }

// Prepare starts the server.
func (s *AttachedNodes) Prepare(ctx context.Context, _ *Environment) (err error) {
	if s.server, err = startHub(ctx, s.Nodes[len(s.Nodes)-1]); err != nil {
		return err
	}
	if err := sleepFor(ctx, s.Settle); err != nil {
		return err
	}
	s.idle, err = s.server.memoryUse()
	return err
}

// Once attaches more and more nodes. The connections last until Close.
func (s *AttachedNodes) Once(ctx context.Context, w *Environment) error {
	cloud, err := s.server.newCloudSide()
	if err != nil {
		return err
	}
	defer cloud.nc.Close()
	for _, n := range s.Nodes {
		began := time.Now()
		if err := s.attachNodes(ctx, cloud, n); err != nil {
			return err
		}
		took := time.Since(began)
		if err := sleepFor(ctx, s.Settle); err != nil {
			return err
		}
		now, err := s.server.memoryUse()
		if err != nil {
			return err
		}
		s.states = append(s.states, attachedState{nodes: n, memory: now, took: took})
		w.logProgress("%s: %d in %.0f ms, %d MB", s.Name(), n, milliseconds(took), now.rss/1e6)
	}
	return s.verifyDelivery(ctx, cloud)
}

// attachNodes raises the number of nodes to n.
func (s *AttachedNodes) attachNodes(ctx context.Context, cloud *cloudSide, n int) error {
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
func (s *AttachedNodes) verifyDelivery(ctx context.Context, cloud *cloudSide) error {
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

// Lines returns the lines of the report.
func (s *AttachedNodes) Lines() []ReportLine {
	const kb, mb, gb = 1e3, 1e6, 1e9
	line := func(measure, unit string, value float64) ReportLine {
		return ReportLine{Scenario: s.Name(), Measure: measure, Unit: unit, Summary: Summarize([]float64{value})}
	}
	lines := []ReportLine{line("hub server without nodes: RSS", unitMemory, float64(s.idle.rss)/mb)}
	for _, at := range s.states {
		n := float64(at.nodes)
		lines = append(lines,
			line(fmt.Sprintf("hub server with %d nodes of %d objects: RSS", at.nodes, objectsEach), unitMemory, float64(at.rss)/mb),
			line("  a node more than without: RSS", unitSmall, float64(at.rss-s.idle.rss)/n/kb),
			line("  of it RssAnon", unitSmall, float64(at.anonymous-s.idle.anonymous)/n/kb),
			line("  the last of them attached after", unitTime, milliseconds(at.took)))
	}
	if len(s.states) > 1 {
		first, last := s.states[0], s.states[len(s.states)-1]
		slope := float64(last.rss-first.rss) / float64(last.nodes-first.nodes)
		lines = append(lines, line("by that slope, 100,000 nodes", unitLarge, (float64(s.idle.rss)+slope*100_000)/gb))
	}
	return lines
}

// Close closes the connections and stops the server.
func (s *AttachedNodes) Close(context.Context, *Environment) error {
	if s.server == nil {
		return nil
	}
	return s.server.close()
}
