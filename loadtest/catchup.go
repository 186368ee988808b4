package loadtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster"
)

// Catchup changes every object of a gateway whose link is cut, and heals the link. It measures the bytes over the link until all is on
// disk. The length of the outage does not matter, as only last values are kept.
type Catchup struct {
	// Objects is the number of the gateway's objects.
	Objects int
	// Times is the number of changes of each object during the cut; 0 means one.
	Times int

	seconds, down, up, restarts []float64
}

const (
	catchupPod    = "catchup"
	catchupConfig = "catchup-config"
	// catchupShare is the number of ConfigMaps that one pod may name: a pod is one object, of 1.5 MB at most.
	catchupShare = 1000
)

// Name returns the name of the scenario.
func (*Catchup) Name() string { return "catch-up" }

// Prepare creates the objects, and pods that take environment variables from them: the kubelet reads those once, but would read volumes
// again at intervals.
func (s *Catchup) Prepare(ctx context.Context, w *Environment) error {
	list := numberedNames(catchupConfig, s.Objects)
	versions, err := w.putAll(ctx, w.createConfigMap, list)
	if err != nil {
		return err
	}
	optional := true
	var pods []*corev1.Pod
	for i := 0; i < len(list); i += catchupShare {
		p := pausePod(fmt.Sprintf("%s-%d", catchupPod, i/catchupShare), w.edgeNames()[0], nil)
		p.Labels["app"] = catchupPod
		for _, name := range list[i:min(i+catchupShare, len(list))] {
			p.Spec.Containers[0].EnvFrom = append(p.Spec.Containers[0].EnvFrom, corev1.EnvFromSource{
				ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: &optional},
			})
		}
		pods = append(pods, p)
	}
	if err := w.launchPods(ctx, pods...); err != nil {
		return err
	}
	return waitUntil(ctx, "the gateway holds them all", func(ctx context.Context) (bool, error) { return w.holdsVersions(ctx, versionsByName(versions)) })
}

// Once cuts the link, changes the objects, heals the link and waits.
func (s *Catchup) Once(ctx context.Context, w *Environment) (err error) {
	edge := w.edgeNames()[0]
	if err := w.cluster.Cut(ctx, edge, true); err != nil {
		return err
	}
	healed := false
	defer func() {
		if !healed {
			err = errors.Join(err, w.cluster.Heal(context.WithoutCancel(ctx), edge))
		}
	}()
	ran, err := w.containerRuns(ctx, "app="+catchupPod)
	if err != nil {
		return err
	}
	var versions map[wire.Key]string
	for range max(s.Times, 1) {
		if versions, err = w.putAll(ctx, w.updateConfigMap, numberedNames(catchupConfig, s.Objects)); err != nil {
			return err
		}
	}
	if err := w.awaitPublished(ctx, edge, versions); err != nil {
		return err
	}
	applied, err := w.cluster.Metric(ctx, edge, appliedMetric)
	if err != nil {
		return err
	}
	before := w.linkTraffic(ctx, edge)
	began := time.Now()
	if err := w.cluster.Heal(ctx, edge); err != nil {
		return err
	}
	healed = true
	err = waitUntil(ctx, "the changes are on disk", func(ctx context.Context) (bool, error) {
		now, err := w.cluster.Metric(ctx, edge, appliedMetric)
		return err == nil && now-applied >= float64(s.Objects), err
	})
	if err != nil {
		return err
	}
	took, after := time.Since(began), w.linkTraffic(ctx, edge)
	if whole, err := w.holdsVersions(ctx, versionsByName(versions)); err != nil || !whole {
		return errors.Join(errors.New("the gateway does not hold each object's last version"), err)
	}
	runs, err := w.containerRuns(ctx, "app="+catchupPod)
	if err != nil {
		return err
	}
	s.restarts = append(s.restarts, float64(countChanged(ran, runs)))
	const mb = 1e6
	s.seconds = append(s.seconds, milliseconds(took))
	s.down = append(s.down, float64(after.DownBytes-before.DownBytes)/mb)
	s.up = append(s.up, float64(after.UpBytes-before.UpBytes)/mb)
	w.logProgress("%s: %d changed objects after %.0f ms", s.Name(), s.Objects, milliseconds(took))
	return nil
}

// appliedMetric counts synced changes of the store.
const appliedMetric = "frond_store_applied_total"

// Lines returns the lines of the report.
func (s *Catchup) Lines() []ReportLine {
	return []ReportLine{
		{Scenario: s.Name(), Measure: fmt.Sprintf("link healed → %s on disk", s.changeLabel()), Unit: unitTime, Summary: Summarize(s.seconds)},
		{Scenario: s.Name(), Measure: "  over the link, down", Unit: unitMemory, Summary: Summarize(s.down)},
		{Scenario: s.Name(), Measure: "  over the link, up", Unit: unitMemory, Summary: Summarize(s.up)},
		{Scenario: s.Name(), Measure: "  containers restarted or pods made anew", Summary: Summarize(s.restarts)},
	}
}

func (s *Catchup) changeLabel() string {
	if s.Times < 2 {
		return fmt.Sprintf("%d changed ConfigMaps", s.Objects)
	}
	return fmt.Sprintf("%d changes of %d ConfigMaps", s.Objects*s.Times, s.Objects)
}

// Close removes the pods and objects.
func (s *Catchup) Close(ctx context.Context, w *Environment) error {
	return w.deleteObjects(ctx, "app="+catchupPod, numberedNames(catchupConfig, s.Objects))
}

func versionsByName(versions map[wire.Key]string) map[string]string {
	list := make(map[string]string, len(versions))
	for key, version := range versions {
		list[key.Name] = version
	}
	return list
}

// awaitPublished waits until the stream holds these versions for a node.
func (w *Environment) awaitPublished(ctx context.Context, node string, versions map[wire.Key]string) error {
	return waitUntil(ctx, "the changes are published", func(ctx context.Context) (bool, error) {
		held, err := w.publisher.Held(ctx, node)
		if err != nil {
			return false, nil //nolint:nilerr // a busy hub does not answer in time: it is asked again
		}
		for key, version := range versions {
			if held[key].Version != version {
				return false, nil
			}
		}
		return true, nil
	})
}

// holdsVersions reports whether the first gateway holds these versions.
func (w *Environment) holdsVersions(ctx context.Context, versions map[string]string) (bool, error) {
	held, err := w.cluster.Store(ctx, w.edgeNames()[0])
	if err != nil {
		return false, err
	}
	found := 0
	for _, o := range held.Objects {
		if version, ok := versions[o.Name]; ok && o.Resource == "configmaps" && o.Namespace == namespace && o.Version == version {
			found++
		}
	}
	return found == len(versions), nil
}

// linkTraffic returns the traffic counters of a gateway's link.
func (w *Environment) linkTraffic(ctx context.Context, edge string) devcluster.EdgeStatus {
	for _, e := range w.cluster.Status(ctx).Edges {
		if e.Name == edge {
			return e
		}
	}
	return devcluster.EdgeStatus{}
}
