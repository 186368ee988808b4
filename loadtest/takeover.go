package loadtest

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Takeover kills the cloudcore that owns a node and changes an object at once. It measures the time until the change is on the node's
// disk.
type Takeover struct {
	// Kills is the number of kills in one round.
	Kills int

	taken []float64
}

const (
	takeoverPod    = "takeover"
	takeoverConfig = "takeover-config"
	takeoverPeer   = "34000-39000"
	takeoverAim    = 2000
)

// Name returns the name of the scenario.
func (*Takeover) Name() string { return "takeover" }

// Prepare creates a pod that mounts the object.
func (s *Takeover) Prepare(ctx context.Context, w *Environment) error {
	if _, err := w.putAll(ctx, w.createConfigMap, []string{takeoverConfig}); err != nil {
		return err
	}
	return w.launchPods(ctx, pausePod(takeoverPod, w.edgeNames()[0], []string{takeoverConfig}))
}

// Once kills the owner, measures, and starts it again.
func (s *Takeover) Once(ctx context.Context, w *Environment) error {
	for range s.Kills {
		if err := w.awaitMembers(ctx, "cloudcore-1", "cloudcore-2"); err != nil {
			return err
		}
		took, err := s.killOwner(ctx, w)
		if err != nil {
			return err
		}
		s.taken = append(s.taken, milliseconds(took))
	}
	return nil
}

func (s *Takeover) killOwner(ctx context.Context, w *Environment) (took time.Duration, err error) {
	node := w.edgeNames()[0]
	owner, err := w.nodeOwner(ctx, node)
	if err != nil {
		return 0, err
	}
	w.acks.dropPending()
	began := time.Now()
	if err := w.cluster.Kill(ctx, owner); err != nil {
		return 0, fmt.Errorf("kill %s: %w", owner, err)
	}
	defer func() { err = errors.Join(err, w.cluster.Start(context.WithoutCancel(ctx), owner)) }()
	versions, err := w.putAll(ctx, w.updateConfigMap, []string{takeoverConfig})
	if err != nil {
		return 0, err
	}
	last, err := w.awaitAcks(ctx, []string{node}, versions)
	return last.Sub(began), err
}

// Lines returns the lines of the report.
func (s *Takeover) Lines() []ReportLine {
	return []ReportLine{{
		Scenario: s.Name(), Measure: "kill -9 of the owner, with a change at once → on the gateway's disk and acked", Unit: unitTime,
		Summary: Summarize(s.taken), Peer: takeoverPeer, Aim: takeoverAim,
	}}
}

// Close removes the pod and the object.
func (*Takeover) Close(ctx context.Context, w *Environment) error {
	return w.deleteObjects(ctx, "app="+takeoverPod, []string{takeoverConfig})
}
