package loadtest

import (
	"context"
	"fmt"
	"time"
)

// Memory measures the memory of edgecore idle, then with pods, then with ConfigMaps as well, and of cloudcore and a hub
// server at the end. A round takes one sample of each.
type Memory struct {
	// Pods is the number of pods on the first gateway in the second state, ConfigMaps their number in the third.
	Pods, ConfigMaps int
	// Settle is the pause before a state is sampled; Samples are taken a second apart.
	Settle  time.Duration
	Samples int

	taken memorySamples
}

const (
	memoryPod     = "memory"
	memoryConfigs = "memory-configs"
)

// The states whose memory is measured, besides the gateway with ConfigMaps.
const (
	stateIdle  = "edgecore idle"
	statePods  = "edgecore with pods"
	stateCloud = "each cloudcore then"
	stateHub   = "each hub server then"
)

// Name returns the name of the scenario.
func (*Memory) Name() string { return "memory" }

// Prepare does nothing: the first state is an idle gateway.
func (s *Memory) Prepare(context.Context, *Environment) error {
	s.taken = memorySamples{settle: s.Settle, each: s.Samples}
	return nil
}

// Once goes through the states.
func (s *Memory) Once(ctx context.Context, w *Environment) error {
	node := w.edgeNames()[0]
	if err := s.taken.sampleSettled(ctx, w, node, stateIdle); err != nil {
		return err
	}
	for _, name := range numberedNames(memoryPod, s.Pods) {
		p := pausePod(name, node, nil)
		p.Labels["app"] = memoryPod
		if err := w.launchPods(ctx, p); err != nil {
			return err
		}
	}
	if err := s.taken.sampleSettled(ctx, w, node, statePods); err != nil {
		return err
	}
	list := numberedNames(memoryConfigs, s.ConfigMaps)
	w.acks.dropPending()
	versions, err := w.putAll(ctx, w.createConfigMap, list)
	if err != nil {
		return err
	}
	mounting := pausePod(memoryConfigs, node, list)
	mounting.Labels["app"] = memoryPod
	if err := w.launchPods(ctx, mounting); err != nil {
		return err
	}
	if _, err := w.awaitAcks(ctx, []string{node}, versions); err != nil {
		return err
	}
	if err := s.taken.sampleSettled(ctx, w, node, fmt.Sprintf("edgecore with %d ConfigMaps as well", s.ConfigMaps)); err != nil {
		return err
	}
	if err := s.sampleAll(ctx, w, stateCloud, "cloudcore-", w.cluster.Spec().Cloudcores); err != nil {
		return err
	}
	if err := s.sampleAll(ctx, w, stateHub, "hub-", w.cluster.Spec().Hubs); err != nil {
		return err
	}
	return s.Close(ctx, w)
}

// sampleAll samples every replica of a kind: only one owns the node, only one leads the stream.
func (s *Memory) sampleAll(ctx context.Context, w *Environment, state, kind string, n int) error {
	for i := range n {
		if err := s.taken.sampleNow(ctx, w, fmt.Sprintf("%s%d", kind, i+1), state); err != nil {
			return err
		}
	}
	return nil
}

// peerMemory returns the peer's RSS and anonymous memory, with a fake runtime.
func peerMemory(state string) (rss, anon string) {
	switch state {
	case stateIdle:
		return "78-80", "16"
	case stateCloud:
		return "98", "44"
	case stateHub, statePods:
		return "", ""
	default:
		return "121", "25"
	}
}

// Lines returns the lines of the report.
func (s *Memory) Lines() []ReportLine {
	return s.taken.reportLines(s.Name(), s.stateLabel, peerMemory)
}

func (s *Memory) stateLabel(state string) string {
	if state == statePods {
		return fmt.Sprintf("edgecore with %d real pods", s.Pods)
	}
	return state
}

// Close removes the remaining objects.
func (s *Memory) Close(ctx context.Context, w *Environment) error {
	return w.deleteObjects(ctx, "app="+memoryPod, numberedNames(memoryConfigs, s.ConfigMaps))
}
