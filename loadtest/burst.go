package loadtest

import (
	"context"
	"fmt"
	"time"
)

// Burst updates many ConfigMaps of one node at once, by parallel writers.
type Burst struct {
	// Objects is how many.
	Objects int

	delivered, written, lag []float64
	costs                   costs
}

const (
	burstPod    = "burst"
	burstConfig = "burst-config"
	// burstAim and burstPeer are deliveries per second: the target, and what was measured with KubeEdge.
	burstAim  = 2000
	burstPeer = "31"
)

// Name of the scenario.
func (*Burst) Name() string { return "burst" }

// Prepare makes a pod that mounts all the ConfigMaps.
func (s *Burst) Prepare(ctx context.Context, w *World) error {
	s.costs = costs{}
	list := names(burstConfig, s.Objects)
	w.acks.forget()
	versions, err := w.putAll(ctx, w.create, list)
	if err != nil {
		return err
	}
	node := w.edges()[0]
	if err := w.launch(ctx, pod(burstPod, node, list)); err != nil {
		return err
	}
	_, err = w.settled(ctx, []string{node}, versions)
	return err
}

// Once updates each ConfigMap.
func (s *Burst) Once(ctx context.Context, w *World) error {
	w.acks.forget()
	before, began := w.cpuNow(), time.Now()
	versions, err := w.putAll(ctx, w.update, names(burstConfig, s.Objects))
	if err != nil {
		return err
	}
	written := time.Now()
	last, err := w.settled(ctx, w.edges()[:1], versions)
	if err != nil {
		return err
	}
	s.costs.add(before, w.cpuNow(), s.Objects)
	s.delivered = append(s.delivered, rate(s.Objects, last.Sub(began)))
	s.written = append(s.written, rate(s.Objects, written.Sub(began)))
	s.lag = append(s.lag, milliseconds(last.Sub(written)))
	w.say("%s: %d updates written in %.0f ms, all acked after %.0f ms", s.Name(), s.Objects,
		milliseconds(written.Sub(began)), milliseconds(last.Sub(began)))
	return nil
}

// Lines of the report.
func (s *Burst) Lines() []Line {
	return append([]Line{
		{
			Scenario: s.Name(), Measure: fmt.Sprintf("%d updates to one node, first API call → last ack", s.Objects), Unit: unitRate,
			Summary: Summarize(s.delivered), Peer: burstPeer, Aim: burstAim,
		},
		{Scenario: s.Name(), Measure: fmt.Sprintf("  the apiserver's part: %d writers, calls answered", writers), Unit: unitRate, Summary: Summarize(s.written)},
		{Scenario: s.Name(), Measure: "  the last ack after the last answer", Unit: unitTime, Summary: Summarize(s.lag)},
	}, s.costs.lines(s.Name())...)
}

// Close removes pod and ConfigMaps.
func (s *Burst) Close(ctx context.Context, w *World) error {
	return w.clear(ctx, "app="+burstPod, names(burstConfig, s.Objects))
}

// Arrival gives nodes a pod each that mounts ConfigMaps which Kubernetes has long had: deliveries without the apiserver's
// part, as after the pods of a rollout were bound.
type Arrival struct {
	// Nodes and Objects: each of the first so many nodes gets so many ConfigMaps.
	Nodes, Objects int
	// Peer's number and the aim, for the report.
	Peer string
	Aim  float64

	versions  map[string]string
	delivered []float64
	costs     costs
}

const (
	arrivalPod    = "arrival"
	arrivalConfig = "arrival-config"
)

// Name of the scenario.
func (*Arrival) Name() string { return "arrival" }

// Prepare makes the ConfigMaps.
func (s *Arrival) Prepare(ctx context.Context, w *World) error {
	s.costs = costs{}
	versions, err := w.putAll(ctx, w.create, names(arrivalConfig, s.Objects))
	s.versions = map[string]string{}
	for key, version := range versions {
		s.versions[key.Name] = version
	}
	return err
}

// Once makes the pods, and takes them away again.
func (s *Arrival) Once(ctx context.Context, w *World) error {
	list, nodes := names(arrivalConfig, s.Objects), w.edges()[:s.Nodes]
	wanted := versionsOf(s.versions)
	w.acks.forget()
	before, began := w.cpuNow(), time.Now()
	if err := w.bind(ctx, arrivalPod, nodes, list); err != nil {
		return err
	}
	last, err := w.settled(ctx, nodes, wanted)
	if err != nil {
		return err
	}
	n := s.Nodes * s.Objects
	s.costs.add(before, w.cpuNow(), n)
	s.delivered = append(s.delivered, rate(n, last.Sub(began)))
	w.say("%s: %d deliveries in %.0f ms", s.Name(), n, milliseconds(last.Sub(began)))
	return w.clear(ctx, "app="+arrivalPod, nil)
}

// Lines of the report.
func (s *Arrival) Lines() []Line {
	return append([]Line{{
		Scenario: s.Name(), Measure: fmt.Sprintf("%d pods that mount %d present ConfigMaps, first pod made → last ack", s.Nodes, s.Objects),
		Unit: unitRate, Summary: Summarize(s.delivered), Peer: s.Peer, Aim: s.Aim,
	}}, s.costs.lines(s.Name())...)
}

// Close removes what is left.
func (s *Arrival) Close(ctx context.Context, w *World) error {
	return w.clear(ctx, "app="+arrivalPod, names(arrivalConfig, s.Objects))
}
