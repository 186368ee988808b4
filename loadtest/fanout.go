package loadtest

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
)

// Fanout makes new ConfigMaps that pods on many nodes wait for.
type Fanout struct {
	// Nodes and Objects: each of so many nodes gets each of so many ConfigMaps.
	Nodes, Objects int

	delivered, written, lag []float64
	costs                   costs
}

const (
	fanoutPod    = "fanout"
	fanoutConfig = "fanout-config"
	fanoutAim    = 5000
	fanoutPeer   = "75"
)

// Name of the scenario.
func (*Fanout) Name() string { return "fan-out" }

// Prepare makes a pod on each node.
func (s *Fanout) Prepare(ctx context.Context, w *World) error {
	s.costs = costs{}
	nodes := w.edges()[:s.Nodes]
	if err := w.bind(ctx, fanoutPod, nodes, names(fanoutConfig, s.Objects)); err != nil {
		return err
	}
	return until(ctx, "the pods run", func(ctx context.Context) (bool, error) {
		list, err := w.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + fanoutPod, FieldSelector: "status.phase=Running"})
		return err == nil && len(list.Items) == len(nodes), err
	})
}

// bind makes one pod on each node, at once.
func (w *World) bind(ctx context.Context, app string, nodes, configMaps []string) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, node := range nodes {
		g.Go(func() error {
			p := pod(app+"-"+node, node, configMaps)
			p.Labels["app"] = app
			if _, err := w.kube.CoreV1().Pods(namespace).Create(gctx, p, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("make pod %s: %w", p.Name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// Once makes the ConfigMaps and deletes them afterwards.
func (s *Fanout) Once(ctx context.Context, w *World) error {
	list, nodes := names(fanoutConfig, s.Objects), w.edges()[:s.Nodes]
	w.acks.forget()
	before, began := w.cpuNow(), time.Now()
	versions, err := w.putAll(ctx, w.create, list)
	if err != nil {
		return err
	}
	written := time.Now()
	last, err := w.settled(ctx, nodes, versions)
	if err != nil {
		return err
	}
	n := s.Nodes * s.Objects
	s.costs.add(before, w.cpuNow(), n)
	s.delivered = append(s.delivered, rate(n, last.Sub(began)))
	s.written = append(s.written, rate(s.Objects, written.Sub(began)))
	s.lag = append(s.lag, milliseconds(last.Sub(written)))
	w.say("%s: %d ConfigMaps written in %.0f ms, %d deliveries acked after %.0f ms", s.Name(), s.Objects,
		milliseconds(written.Sub(began)), n, milliseconds(last.Sub(began)))
	return w.clear(ctx, "app=none", list)
}

// Lines of the report.
func (s *Fanout) Lines() []Line {
	return append([]Line{
		{
			Scenario: s.Name(), Measure: fmt.Sprintf("%d new ConfigMaps × %d nodes, first API call → last ack", s.Objects, s.Nodes), Unit: unitRate,
			Summary: Summarize(s.delivered), Peer: fanoutPeer, Aim: fanoutAim,
		},
		{Scenario: s.Name(), Measure: "  the apiserver's part: ConfigMaps written", Unit: unitRate, Summary: Summarize(s.written)},
		{Scenario: s.Name(), Measure: "  the last ack after the last answer", Unit: unitTime, Summary: Summarize(s.lag)},
	}, s.costs.lines(s.Name())...)
}

// Close removes the pods and what is left.
func (s *Fanout) Close(ctx context.Context, w *World) error {
	return w.clear(ctx, "app="+fanoutPod, names(fanoutConfig, s.Objects))
}

func versionsOf(byName map[string]string) map[wire.Key]string {
	versions := make(map[wire.Key]string, len(byName))
	for name, version := range byName {
		versions[configMapKey(name)] = version
	}
	return versions
}
