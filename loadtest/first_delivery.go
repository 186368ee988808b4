package loadtest

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// FirstDelivery creates objects that are new to a node, one at a time, with two cloudcores and with one.
type FirstDelivery struct {
	// Objects is the number created with two and with one.
	Objects int

	two, one []float64
}

const (
	firstPod     = "first"
	firstConfig  = "first-config"
	firstPeerTwo = "894, p90 5000"
	firstPeerOne = "24, p90 43"
	// firstAim: two replicas shall be as fast as one of the peer.
	firstAim = 24
)

// Name returns the name of the scenario.
func (*FirstDelivery) Name() string { return "first delivery" }

// Prepare creates a pod that waits for all objects.
func (s *FirstDelivery) Prepare(ctx context.Context, w *Environment) error {
	return w.launchPods(ctx, pausePod(firstPod, w.edgeNames()[0], numberedNames(firstConfig, 2*s.Objects)))
}

// Once measures with both cloudcores, then with the first alone.
func (s *FirstDelivery) Once(ctx context.Context, w *Environment) (err error) {
	if err := w.awaitMembers(ctx, "cloudcore-1", "cloudcore-2"); err != nil {
		return err
	}
	list := numberedNames(firstConfig, 2*s.Objects)
	if s.two, err = s.measureDelivery(ctx, w, list[:s.Objects]); err != nil {
		return err
	}
	const other = "cloudcore-2"
	if err := w.cluster.Kill(ctx, other); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.cluster.Start(context.WithoutCancel(ctx), other)) }()
	if err := w.awaitMembers(ctx, "cloudcore-1"); err != nil {
		return err
	}
	s.one, err = s.measureDelivery(ctx, w, list[s.Objects:])
	return err
}

func (s *FirstDelivery) measureDelivery(ctx context.Context, w *Environment, list []string) (taken []float64, err error) {
	for _, name := range list {
		w.acks.dropPending()
		began := time.Now()
		versions, err := w.putAll(ctx, w.createConfigMap, []string{name})
		if err != nil {
			return taken, err
		}
		last, err := w.awaitAcks(ctx, w.edgeNames()[:1], versions)
		if err != nil {
			return taken, fmt.Errorf("%s: %w", name, err)
		}
		taken = append(taken, milliseconds(last.Sub(began)))
	}
	return taken, nil
}

// Lines returns the lines of the report.
func (s *FirstDelivery) Lines() []ReportLine {
	line := func(measure string, taken []float64, peer string) ReportLine {
		return ReportLine{Scenario: s.Name(), Measure: "new ConfigMap → on disk and acked, " + measure, Unit: unitTime, Summary: Summarize(taken), Peer: peer, Aim: firstAim}
	}
	return []ReportLine{line("2 cloudcores", s.two, firstPeerTwo), line("1 cloudcore", s.one, firstPeerOne)}
}

// Close removes the pod and the objects.
func (s *FirstDelivery) Close(ctx context.Context, w *Environment) error {
	return w.deleteObjects(ctx, "app="+firstPod, numberedNames(firstConfig, 2*s.Objects))
}
