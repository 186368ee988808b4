package loadtest

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// SingleUpdate updates one ConfigMap that a pod of a node mounts, and waits for the ack before the next update. It measures the time
// from the API call to the gateway's disk and back.
type SingleUpdate struct {
	// Updates is the number of updates of one round.
	Updates int

	taken, written []float64
}

// The objects of SingleUpdate.
const (
	singlePod    = "single"
	singleConfig = "single-config"
	// warmUpUpdates are updates that are not measured: they warm the connections and caches of all processes.
	warmUpUpdates = 20
	// singleAim, in ms, is less than half of the peer's p50 of 13.7 ms.
	singleAim = 5
)

// Name returns the name of the scenario.
func (*SingleUpdate) Name() string { return "one update" }

// Prepare creates the pod and warms up.
func (s *SingleUpdate) Prepare(ctx context.Context, w *Environment) error {
	if _, err := w.putAll(ctx, w.createConfigMap, []string{singleConfig}); err != nil {
		return err
	}
	if err := w.launchPods(ctx, pausePod(singlePod, w.edgeNames()[0], []string{singleConfig})); err != nil {
		return err
	}
	for range warmUpUpdates {
		if _, _, err := s.updateOnce(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// Once does the updates of a round.
func (s *SingleUpdate) Once(ctx context.Context, w *Environment) error {
	for range s.Updates {
		acked, written, err := s.updateOnce(ctx, w)
		if err != nil {
			return err
		}
		s.taken, s.written = append(s.taken, milliseconds(acked)), append(s.written, milliseconds(written))
	}
	return nil
}

// updateOnce returns the time until the ack, and until the apiserver's answer.
func (s *SingleUpdate) updateOnce(ctx context.Context, w *Environment) (acked, written time.Duration, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, waitTimeout, fmt.Errorf("not within %s", waitTimeout))
	defer cancel()
	subject, cm := subjectOf(w.edgeNames()[0], singleConfig), w.configMap(singleConfig)
	w.acks.dropPending()
	began := time.Now()
	stored, err := w.updateConfigMap(ctx, cm)
	if err != nil {
		return 0, 0, fmt.Errorf("update: %w", err)
	}
	written = time.Since(began)
	for {
		got, err := w.acks.nextAck(ctx)
		if err != nil {
			return 0, 0, errors.Join(err, context.Cause(ctx))
		}
		if on, version, ok := w.messageAt(ctx, got.sequence); ok && on == subject && version == stored.ResourceVersion {
			return got.at.Sub(began), written, nil
		}
	}
}

// Lines returns the lines of the report.
func (s *SingleUpdate) Lines() []ReportLine {
	return []ReportLine{
		{
			Scenario: s.Name(), Measure: "API call → on the gateway's disk and acked", Unit: unitTime,
			Summary: Summarize(s.taken), Peer: "13.7, p99 26", Aim: singleAim,
		},
		{Scenario: s.Name(), Measure: "  of it until the apiserver answered", Unit: unitTime, Summary: Summarize(s.written)},
	}
}

// Close removes the pod.
func (*SingleUpdate) Close(ctx context.Context, w *Environment) error {
	return w.deleteObjects(ctx, "app="+singlePod, []string{singleConfig})
}
