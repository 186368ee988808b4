package loadtest

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
)

// Fanout creates new ConfigMaps that pods on many nodes wait for.
type Fanout struct {
	// Nodes is the number of nodes, Objects the number of ConfigMaps that each receives.
	Nodes, Objects int

	delivered, written, lag []float64
	costs                   cpuCosts
}

const (
	fanoutPod    = "fanout"
	fanoutConfig = "fanout-config"
	fanoutAim    = 5000
	fanoutPeer   = "75"
)

// Name returns the name of the scenario.
func (*Fanout) Name() string { return "fan-out" }

// Prepare creates a pod on each node.
func (s *Fanout) Prepare(ctx context.Context, w *Environment) error {
	s.costs = cpuCosts{}
	nodes := w.edgeNames()[:s.Nodes]
	if err := w.bindPods(ctx, fanoutPod, nodes, numberedNames(fanoutConfig, s.Objects)); err != nil {
		return err
	}
	return waitUntil(ctx, "the pods run", func(ctx context.Context) (bool, error) {
		list, err := w.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + fanoutPod, FieldSelector: "status.phase=Running"})
		return err == nil && len(list.Items) == len(nodes), err
	})
}

// bindPods creates one pod on each node concurrently.
func (w *Environment) bindPods(ctx context.Context, app string, nodes, configMaps []string) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, node := range nodes {
		g.Go(func() error {
			p := pausePod(app+"-"+node, node, configMaps)
			p.Labels["app"] = app
			if _, err := w.kube.CoreV1().Pods(namespace).Create(gctx, p, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("make pod %s: %w", p.Name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// Once creates the ConfigMaps and deletes them afterwards.
func (s *Fanout) Once(ctx context.Context, w *Environment) error {
	list, nodes := numberedNames(fanoutConfig, s.Objects), w.edgeNames()[:s.Nodes]
	w.acks.dropPending()
	before, began := w.cpuNow(), time.Now()
	versions, err := w.putAll(ctx, w.createConfigMap, list)
	if err != nil {
		return err
	}
	written := time.Now()
	last, err := w.awaitAcks(ctx, nodes, versions)
	if err != nil {
		return err
	}
	n := s.Nodes * s.Objects
	s.costs.add(before, w.cpuNow(), n)
	s.delivered = append(s.delivered, perSecond(n, last.Sub(began)))
	s.written = append(s.written, perSecond(s.Objects, written.Sub(began)))
	s.lag = append(s.lag, milliseconds(last.Sub(written)))
	w.logProgress("%s: %d ConfigMaps written in %.0f ms, %d deliveries acked after %.0f ms", s.Name(), s.Objects,
		milliseconds(written.Sub(began)), n, milliseconds(last.Sub(began)))
	return w.deleteObjects(ctx, "app=none", list)
}

// Lines returns the lines of the report.
func (s *Fanout) Lines() []ReportLine {
	return append([]ReportLine{
		{
			Scenario: s.Name(), Measure: fmt.Sprintf("%d new ConfigMaps × %d nodes, first API call → last ack", s.Objects, s.Nodes), Unit: unitRate,
			Summary: Summarize(s.delivered), Peer: fanoutPeer, Aim: fanoutAim,
		},
		{Scenario: s.Name(), Measure: "  the apiserver's part: ConfigMaps written", Unit: unitRate, Summary: Summarize(s.written)},
		{Scenario: s.Name(), Measure: "  the last ack after the last answer", Unit: unitTime, Summary: Summarize(s.lag)},
	}, s.costs.reportLines(s.Name())...)
}

// Close removes the pods and the remaining ConfigMaps.
func (s *Fanout) Close(ctx context.Context, w *Environment) error {
	return w.deleteObjects(ctx, "app="+fanoutPod, numberedNames(fanoutConfig, s.Objects))
}

func versionsOf(byName map[string]string) map[wire.Key]string {
	versions := make(map[wire.Key]string, len(byName))
	for name, version := range byName {
		versions[configMapKey(name)] = version
	}
	return versions
}
