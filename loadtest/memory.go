package loadtest

import (
	"context"
	"fmt"
	"time"

	"github.com/frond-edge/frond/loadtest/poll"
)

// memoryPace says how memory is sampled: after a pause to settle, so many samples a second apart.
type memoryPace struct {
	settle  time.Duration
	samples int
}

// recordMemory samples a component's memory in a state. peerRSS and peerAnon are the peer's values.
func recordMemory(ctx context.Context, w *Environment, pace memoryPace, part, state, peerRSS, peerAnon string) error {
	if err := poll.Sleep(ctx, pace.settle); err != nil {
		return err
	}
	for range pace.samples {
		now, err := readMemory(w.cluster.PID(part))
		if err != nil {
			return fmt.Errorf("memory of %s: %w", part, err)
		}
		const mb = 1e6
		w.record(measure{text: state + ": RSS", unit: unitMemory, peer: peerRSS}, float64(now.rss)/mb)
		w.record(measure{text: state + ": RssAnon", unit: unitMemory, peer: peerAnon}, float64(now.anonymous)/mb)
		if err := poll.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
	return nil
}

// memoryUse measures the memory of edgecore idle, then with pods, then with ConfigMaps as well, and of each cloudcore and hub server at
// the end: only one owns the node, only one leads the stream. The peer's values are those with a fake runtime.
func memoryUse(pods, configMaps int, pace memoryPace) scenario {
	return scenario{"memory", func(ctx context.Context, w *Environment) error {
		node := w.edgeNames()[0]
		if err := recordMemory(ctx, w, pace, node, "edgecore idle", "78-80", "16"); err != nil {
			return err
		}
		for _, name := range numberedNames("memory", pods) {
			if err := w.launchPods(ctx, pausePod(name, node, nil)); err != nil {
				return err
			}
		}
		if err := recordMemory(ctx, w, pace, node, fmt.Sprintf("edgecore with %d real pods", pods), "", ""); err != nil {
			return err
		}
		list := numberedNames("memory-configs", configMaps)
		w.acks.dropPending()
		versions, err := w.putAll(ctx, w.createConfigMap, list)
		if err != nil {
			return err
		}
		if err := w.launchPods(ctx, pausePod("memory-configs", node, list)); err != nil {
			return err
		}
		if _, err := w.awaitAcks(ctx, []string{node}, versions); err != nil {
			return err
		}
		if err := recordMemory(ctx, w, pace, node, fmt.Sprintf("edgecore with %d ConfigMaps as well", configMaps), "121", "25"); err != nil {
			return err
		}
		pace.settle = 0
		for i := range w.cluster.Spec().Cloudcores {
			if err := recordMemory(ctx, w, pace, fmt.Sprint("cloudcore-", i+1), "each cloudcore then", "98", "44"); err != nil {
				return err
			}
		}
		for i := range w.cluster.Spec().Hubs {
			if err := recordMemory(ctx, w, pace, fmt.Sprint("hub-", i+1), "each hub server then", "", ""); err != nil {
				return err
			}
		}
		return nil
	}}
}
