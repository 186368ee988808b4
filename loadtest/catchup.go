package loadtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/loadtest/poll"
)

// catchup changes every object of a gateway whose link is cut, times times, and heals the link. It measures the bytes over the link until
// all is on disk. The length of the outage does not matter, as only last values are kept.
func catchup(objects, times, rounds int) scenario {
	return scenario{"catch-up", func(ctx context.Context, w *Environment) error {
		list := numberedNames("catchup", objects)
		if err := prepareCatchup(ctx, w, list); err != nil {
			return err
		}
		for range rounds {
			if err := measureCatchup(ctx, w, list, times); err != nil {
				return err
			}
		}
		return nil
	}}
}

// catchupShare is the number of ConfigMaps that one pod may name: a pod is one object, of 1.5 MB at most.
const catchupShare = 1000

// prepareCatchup creates the objects, and pods that take environment variables from them: the kubelet reads those once, but would read
// volumes again at intervals.
func prepareCatchup(ctx context.Context, w *Environment, list []string) error {
	versions, err := w.putAll(ctx, w.createConfigMap, list)
	if err != nil {
		return err
	}
	optional := true
	var pods []*corev1.Pod
	for i := 0; i < len(list); i += catchupShare {
		p := pausePod(fmt.Sprintf("catchup-%d", i/catchupShare), w.edgeNames()[0], nil)
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
	return poll.Until(ctx, "the gateway holds them all", func(ctx context.Context) (bool, error) { return holdsVersions(ctx, w, versions) })
}

// appliedMetric counts synced changes of the store.
const appliedMetric = "frond_store_applied_total"

// measureCatchup cuts the link, changes the objects, heals the link and waits.
func measureCatchup(ctx context.Context, w *Environment, list []string, times int) (err error) {
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
	ran, err := containerRuns(ctx, w)
	if err != nil {
		return err
	}
	var versions map[wire.Key]string
	for range times {
		if versions, err = w.putAll(ctx, w.updateConfigMap, list); err != nil {
			return err
		}
	}
	if err := awaitPublished(ctx, w, edge, versions); err != nil {
		return err
	}
	applied, err := w.cluster.Metric(ctx, edge, appliedMetric)
	if err != nil {
		return err
	}
	before := linkTraffic(ctx, w, edge)
	began := time.Now()
	if err := w.cluster.Heal(ctx, edge); err != nil {
		return err
	}
	healed = true
	err = poll.Until(ctx, "the changes are on disk", func(ctx context.Context) (bool, error) {
		now, err := w.cluster.Metric(ctx, edge, appliedMetric)
		return err == nil && now-applied >= float64(len(list)), err
	})
	if err != nil {
		return err
	}
	took, after := time.Since(began), linkTraffic(ctx, w, edge)
	if whole, err := holdsVersions(ctx, w, versions); err != nil || !whole {
		return errors.Join(errors.New("the gateway does not hold each object's last version"), err)
	}
	runs, err := containerRuns(ctx, w)
	if err != nil {
		return err
	}
	changed := fmt.Sprintf("%d changed ConfigMaps", len(list))
	if times > 1 {
		changed = fmt.Sprintf("%d changes of %d ConfigMaps", len(list)*times, len(list))
	}
	const mb = 1e6
	w.recordTime(measure{text: fmt.Sprintf("link healed → %s on disk", changed)}, took)
	w.record(measure{text: "  over the link, down", unit: unitMemory}, float64(after.DownBytes-before.DownBytes)/mb)
	w.record(measure{text: "  over the link, up", unit: unitMemory}, float64(after.UpBytes-before.UpBytes)/mb)
	w.record(measure{text: "  containers restarted or pods created again"}, float64(countChanged(ran, runs)))
	w.logProgress("%s: %d changed objects after %.0f ms", w.name, len(list), milliseconds(took))
	return nil
}

// awaitPublished waits until the stream holds these versions for a node.
func awaitPublished(ctx context.Context, w *Environment, node string, versions map[wire.Key]string) error {
	return poll.Until(ctx, "the changes are published", func(ctx context.Context) (bool, error) {
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
func holdsVersions(ctx context.Context, w *Environment, versions map[wire.Key]string) (bool, error) {
	held, err := w.cluster.Store(ctx, w.edgeNames()[0])
	if err != nil {
		return false, err
	}
	found := 0
	for _, o := range held.Objects {
		if version, ok := versions[o.Key()]; ok && o.Version == version {
			found++
		}
	}
	return found == len(versions), nil
}

// linkTraffic returns the traffic counters of a gateway's link.
func linkTraffic(ctx context.Context, w *Environment, edge string) devcluster.EdgeStatus {
	for _, e := range w.cluster.Status(ctx).Edges {
		if e.Name == edge {
			return e
		}
	}
	return devcluster.EdgeStatus{}
}

// containerRuns identifies the present run of each container, as Kubernetes reports it.
func containerRuns(ctx context.Context, w *Environment) (map[string]string, error) {
	list, err := w.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	runs := map[string]string{}
	for i := range list.Items {
		p := &list.Items[i]
		for _, c := range p.Status.ContainerStatuses {
			runs[p.Name+"/"+c.Name] = fmt.Sprint(p.UID, " ", c.ContainerID, " ", c.RestartCount)
		}
	}
	return runs, nil
}

// countChanged counts the containers whose run changed.
func countChanged(before, after map[string]string) int {
	n := 0
	for name, run := range before {
		if after[name] != run {
			n++
		}
	}
	return n
}
