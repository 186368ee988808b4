package loadtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// throughput measures deliveries per second: each round makes the same ConfigMaps due on the first nodes at once.
type throughput struct {
	name                   string
	nodes, objects, rounds int
	// rate is the measure of deliveries; calls is the measure of the apiserver's part, "" if a round writes no ConfigMaps.
	rate  measure
	calls string
	// prepare makes what the rounds need. deliver makes the objects due and returns their versions; undo reverts it.
	prepare func(ctx context.Context, w *Environment, nodes, list []string) error
	deliver func(ctx context.Context, w *Environment, nodes, list []string) (map[wire.Key]string, error)
	undo    func(ctx context.Context, w *Environment) error
}

// The targets in deliveries per second, and the measured values of KubeEdge.
const (
	burstAim   = 2000
	burstPeer  = "31"
	fanoutAim  = 5000
	fanoutPeer = "75"
	slowAim    = 1000
	slowPeer   = "9"
	// slowRoundTrip is the round trip of a slow link.
	slowRoundTrip = 100 * time.Millisecond
)

// burst updates many ConfigMaps of one node by parallel writers.
func burst(objects, rounds int) throughput {
	return throughput{
		name: "burst", nodes: 1, objects: objects, rounds: rounds,
		rate:  measure{fmt.Sprintf("%d updates to one node, first API call → last ack", objects), unitRate, burstPeer, burstAim},
		calls: fmt.Sprintf("  the apiserver's part: %d writers, calls answered", writers),
		prepare: func(ctx context.Context, w *Environment, nodes, list []string) error {
			w.acks.dropPending()
			versions, err := w.putAll(ctx, w.createConfigMap, list)
			if err != nil {
				return err
			}
			if err := w.launchPods(ctx, pausePod("burst", nodes[0], list)); err != nil {
				return err
			}
			_, err = w.awaitAcks(ctx, nodes, versions)
			return err
		},
		deliver: func(ctx context.Context, w *Environment, _, list []string) (map[wire.Key]string, error) {
			return w.putAll(ctx, w.updateConfigMap, list)
		},
	}
}

// fanout creates new ConfigMaps that pods on many nodes wait for.
func fanout(nodes, objects, rounds int) throughput {
	return throughput{
		name: "fan-out", nodes: nodes, objects: objects, rounds: rounds,
		rate:  measure{fmt.Sprintf("%d new ConfigMaps × %d nodes, first API call → last ack", objects, nodes), unitRate, fanoutPeer, fanoutAim},
		calls: "  the apiserver's part: ConfigMaps written",
		prepare: func(ctx context.Context, w *Environment, nodes, list []string) error {
			if err := w.bindPods(ctx, "fanout", nodes, list); err != nil {
				return err
			}
			return w.awaitRunning(ctx, len(nodes))
		},
		deliver: func(ctx context.Context, w *Environment, _, list []string) (map[wire.Key]string, error) {
			return w.putAll(ctx, w.createConfigMap, list)
		},
		undo: func(ctx context.Context, w *Environment) error { return w.deleteConfigMaps(ctx) },
	}
}

// arrival creates a pod on each of several nodes that mounts ConfigMaps which already exist: it measures deliveries without the
// apiserver's part, as after the pods of a rollout were bound.
func arrival(nodes, objects, rounds int, peer string, aim float64) throughput {
	var versions map[wire.Key]string
	return throughput{
		name: "arrival", nodes: nodes, objects: objects, rounds: rounds,
		rate: measure{fmt.Sprintf("%d pods that mount %d present ConfigMaps, first pod made → last ack", nodes, objects), unitRate, peer, aim},
		prepare: func(ctx context.Context, w *Environment, _, list []string) (err error) {
			versions, err = w.putAll(ctx, w.createConfigMap, list)
			return err
		},
		deliver: func(ctx context.Context, w *Environment, nodes, list []string) (map[wire.Key]string, error) {
			return versions, w.bindPods(ctx, "arrival", nodes, list)
		},
		undo: func(ctx context.Context, w *Environment) error { return w.deletePods(ctx) },
	}
}

// scenario measures on links as they are.
func (s throughput) scenario() scenario {
	return scenario{s.name, func(ctx context.Context, w *Environment) error { return s.run(ctx, w, true) }}
}

// overSlowLink measures while the first gateway's link has a long round trip, without the CPU time, which does not depend on it.
func (s throughput) overSlowLink() scenario {
	s.rate.text = fmt.Sprintf("%s, round trip %s", s.rate.text, slowRoundTrip)
	s.rate.peer, s.rate.aim = slowPeer, slowAim
	prepare := s.prepare
	s.prepare = func(ctx context.Context, w *Environment, nodes, list []string) error {
		if err := prepare(ctx, w, nodes, list); err != nil {
			return err
		}
		w.atEnd(func(ctx context.Context) error { return w.cluster.Shape(ctx, nodes[0], wan.Shape{}) })
		return w.cluster.Shape(ctx, nodes[0], wan.Shape{Delay: slowRoundTrip / 2})
	}
	return scenario{s.name + " over a slow link", func(ctx context.Context, w *Environment) error { return s.run(ctx, w, false) }}
}

func (s throughput) run(ctx context.Context, w *Environment, withCPU bool) error {
	nodes, list := w.edgeNames()[:s.nodes], numberedNames(s.name, s.objects)
	if err := s.prepare(ctx, w, nodes, list); err != nil {
		return err
	}
	n := s.nodes * s.objects
	for range s.rounds {
		w.acks.dropPending()
		before, began := readCPU(w), time.Now()
		versions, err := s.deliver(ctx, w, nodes, list)
		if err != nil {
			return err
		}
		written := time.Now()
		last, err := w.awaitAcks(ctx, nodes, versions)
		if err != nil {
			return err
		}
		after := readCPU(w)
		w.record(s.rate, perSecond(n, last.Sub(began)))
		if s.calls != "" {
			w.record(measure{text: s.calls, unit: unitRate}, perSecond(s.objects, written.Sub(began)))
			w.recordTime(measure{text: "  the last ack after the last answer"}, last.Sub(written))
		}
		if withCPU {
			recordCPU(w, before, after, n)
		}
		w.logProgress("%s: written in %.0f ms, %d deliveries acked after %.0f ms", w.name, milliseconds(written.Sub(began)), n, milliseconds(last.Sub(began)))
		if s.undo == nil {
			continue
		}
		if err := errors.Join(s.undo(ctx, w), w.awaitReleasedObjects(ctx)); err != nil {
			return err
		}
	}
	return nil
}
