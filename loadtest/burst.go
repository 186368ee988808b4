package loadtest

import (
	"context"
	"fmt"
	"time"
)

// Burst updates many ConfigMaps of one node at once, by parallel writers.
type Burst struct {
	// Objects is the number of ConfigMaps.
	Objects int

	delivered, written, lag []float64
	costs                   cpuCosts
}

const (
	burstPod    = "burst"
	burstConfig = "burst-config"
	// burstAim and burstPeer are deliveries per second: the target, and the measured value of KubeEdge.
	burstAim  = 2000
	burstPeer = "31"
)

// Name returns the name of the scenario.
func (*Burst) Name() string { return "burst" }

// Prepare creates a pod that mounts all the ConfigMaps.
func (s *Burst) Prepare(ctx context.Context, w *Environment) error {
	s.costs = cpuCosts{}
	list := numberedNames(burstConfig, s.Objects)
	w.acks.dropPending()
	versions, err := w.putAll(ctx, w.createConfigMap, list)
	if err != nil {
		return err
	}
	node := w.edgeNames()[0]
	if err := w.launchPods(ctx, pausePod(burstPod, node, list)); err != nil {
		return err
	}
	_, err = w.awaitAcks(ctx, []string{node}, versions)
	return err
}

// Once updates each ConfigMap.
func (s *Burst) Once(ctx context.Context, w *Environment) error {
	w.acks.dropPending()
	before, began := w.cpuNow(), time.Now()
	versions, err := w.putAll(ctx, w.updateConfigMap, numberedNames(burstConfig, s.Objects))
	if err != nil {
		return err
	}
	written := time.Now()
	last, err := w.awaitAcks(ctx, w.edgeNames()[:1], versions)
	if err != nil {
		return err
	}
	s.costs.add(before, w.cpuNow(), s.Objects)
	s.delivered = append(s.delivered, perSecond(s.Objects, last.Sub(began)))
	s.written = append(s.written, perSecond(s.Objects, written.Sub(began)))
	s.lag = append(s.lag, milliseconds(last.Sub(written)))
	w.logProgress("%s: %d updates written in %.0f ms, all acked after %.0f ms", s.Name(), s.Objects,
		milliseconds(written.Sub(began)), milliseconds(last.Sub(began)))
	return nil
}

// Lines returns the lines of the report.
func (s *Burst) Lines() []ReportLine {
	return append([]ReportLine{
		{
			Scenario: s.Name(), Measure: fmt.Sprintf("%d updates to one node, first API call → last ack", s.Objects), Unit: unitRate,
			Summary: Summarize(s.delivered), Peer: burstPeer, Aim: burstAim,
		},
		{Scenario: s.Name(), Measure: fmt.Sprintf("  the apiserver's part: %d writers, calls answered", writers), Unit: unitRate, Summary: Summarize(s.written)},
		{Scenario: s.Name(), Measure: "  the last ack after the last answer", Unit: unitTime, Summary: Summarize(s.lag)},
	}, s.costs.reportLines(s.Name())...)
}

// Close removes the pod and the ConfigMaps.
func (s *Burst) Close(ctx context.Context, w *Environment) error {
	return w.deleteObjects(ctx, "app="+burstPod, numberedNames(burstConfig, s.Objects))
}

// Arrival creates a pod on each of several nodes that mounts ConfigMaps which already exist: it measures deliveries without the
// apiserver's part, as after the pods of a rollout were bound.
type Arrival struct {
	// Nodes is the number of nodes, the first of the cluster; Objects is the number of ConfigMaps of each.
	Nodes, Objects int
	// Peer and Aim are the peer's value and the target, for the report.
	Peer string
	Aim  float64

	versions  map[string]string
	delivered []float64
	costs     cpuCosts
}

const (
	arrivalPod    = "arrival"
	arrivalConfig = "arrival-config"
)

// Name returns the name of the scenario.
func (*Arrival) Name() string { return "arrival" }

// Prepare creates the ConfigMaps.
func (s *Arrival) Prepare(ctx context.Context, w *Environment) error {
	s.costs = cpuCosts{}
	versions, err := w.putAll(ctx, w.createConfigMap, numberedNames(arrivalConfig, s.Objects))
	s.versions = map[string]string{}
	for key, version := range versions {
		s.versions[key.Name] = version
	}
	return err
}

// Once creates the pods, and removes them again.
func (s *Arrival) Once(ctx context.Context, w *Environment) error {
	list, nodes := numberedNames(arrivalConfig, s.Objects), w.edgeNames()[:s.Nodes]
	wanted := versionsOf(s.versions)
	w.acks.dropPending()
	before, began := w.cpuNow(), time.Now()
	if err := w.bindPods(ctx, arrivalPod, nodes, list); err != nil {
		return err
	}
	last, err := w.awaitAcks(ctx, nodes, wanted)
	if err != nil {
		return err
	}
	n := s.Nodes * s.Objects
	s.costs.add(before, w.cpuNow(), n)
	s.delivered = append(s.delivered, perSecond(n, last.Sub(began)))
	w.logProgress("%s: %d deliveries in %.0f ms", s.Name(), n, milliseconds(last.Sub(began)))
	return w.deleteObjects(ctx, "app="+arrivalPod, nil)
}

// Lines returns the lines of the report.
func (s *Arrival) Lines() []ReportLine {
	return append([]ReportLine{{
		Scenario: s.Name(), Measure: fmt.Sprintf("%d pods that mount %d present ConfigMaps, first pod made → last ack", s.Nodes, s.Objects),
		Unit: unitRate, Summary: Summarize(s.delivered), Peer: s.Peer, Aim: s.Aim,
	}}, s.costs.reportLines(s.Name())...)
}

// Close removes the remaining objects.
func (s *Arrival) Close(ctx context.Context, w *Environment) error {
	return w.deleteObjects(ctx, "app="+arrivalPod, numberedNames(arrivalConfig, s.Objects))
}
