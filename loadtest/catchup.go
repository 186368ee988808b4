package loadtest

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/frond-edge/frond/internal/devcluster/wan"
	"github.com/frond-edge/frond/loadtest/poll"
	"github.com/frond-edge/frond/loadtest/results"
	"github.com/frond-edge/frond/loadtest/workload"
)

const (
	// catchupShare is the number of ConfigMaps that one pod may name: a pod is one object, of 1.5 MB at most.
	catchupShare = 1000
	// appliedMetric counts synced changes of the store.
	appliedMetric = "frond_store_applied_total"
)

// outage is what a gateway had when its link was cut, and what it has after it caught up.
type outage struct {
	// times is how often each object changes.
	times         int
	applied       float64
	before, after wan.Link
	ran, runs     sets.Set[string]
}

// catchup changes every object of a gateway whose link is cut, times times, and heals the link. It measures the bytes over the link until
// all is on disk. The length of the outage does not matter, as only last values are kept.
func catchup(objects, times, rounds int) scenario {
	o := &outage{times: times}
	changed := fmt.Sprintf("%d changed ConfigMaps", objects)
	if times > 1 {
		changed = fmt.Sprintf("%d changes of %d ConfigMaps", objects*times, objects)
	}
	return scenario{
		name: "catch-up", object: "catchup", nodes: 1, objects: objects, rounds: rounds,
		prepare: inOrder(createObjects, nameObjects, awaitDelivered), ready: o.changeAll, write: healLink, await: o.awaitCaughtUp,
		lines: []line{
			{measure{Text: fmt.Sprintf("link healed → %s on disk", changed), Unit: results.Time}, tookTime},
			{measure{Text: "  over the link, down", Unit: results.Memory}, func(*round) float64 { return float64(o.after.DownBytes-o.before.DownBytes) / 1e6 }},
			{measure{Text: "  over the link, up", Unit: results.Memory}, func(*round) float64 { return float64(o.after.UpBytes-o.before.UpBytes) / 1e6 }},
			{measure{Text: "  containers restarted or pods created again"}, func(*round) float64 { return float64(o.ran.Difference(o.runs).Len()) }},
		},
	}
}

// nameObjects launches pods that take environment variables from the objects: the kubelet reads those once, but would read volumes again
// at intervals.
func nameObjects(ctx context.Context, r *round) error {
	optional := true
	var pods []*corev1.Pod
	for i := 0; i < len(r.names); i += catchupShare {
		p := workload.PausePod(fmt.Sprintf("catchup-%d", i/catchupShare), r.nodes[0], nil)
		for _, name := range r.names[i:min(i+catchupShare, len(r.names))] {
			p.Spec.Containers[0].EnvFrom = append(p.Spec.Containers[0].EnvFrom, corev1.EnvFromSource{
				ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: &optional},
			})
		}
		pods = append(pods, p)
	}
	_, _, err := r.w.objects.LaunchPods(ctx, pods...)
	return err
}

// changeAll cuts the link and changes the objects until the hub has their last versions.
func (o *outage) changeAll(ctx context.Context, r *round) (err error) {
	if err := r.w.cluster.Cut(ctx, r.nodes[0], true); err != nil {
		return err
	}
	if o.ran, err = r.w.objects.ContainerRuns(ctx); err != nil {
		return err
	}
	for range o.times {
		if err := updateObjects(ctx, r); err != nil {
			return err
		}
	}
	if err := r.w.acks.AwaitPublished(ctx, r.nodes[0], r.versions); err != nil {
		return err
	}
	if o.applied, err = r.w.cluster.Metric(ctx, r.nodes[0], appliedMetric); err != nil {
		return err
	}
	links, err := r.w.cluster.States(ctx)
	o.before = links[r.nodes[0]]
	return err
}

func healLink(ctx context.Context, r *round) error { return r.w.cluster.Heal(ctx, r.nodes[0]) }

// awaitCaughtUp waits until the gateway has stored as many changes as there are objects; they must be the objects' last versions.
func (o *outage) awaitCaughtUp(ctx context.Context, r *round) error {
	err := poll.Until(ctx, "the changes are on disk", func(ctx context.Context) (bool, error) {
		now, err := r.w.cluster.Metric(ctx, r.nodes[0], appliedMetric)
		return err == nil && now-o.applied >= float64(len(r.names)), err
	})
	if err != nil {
		return err
	}
	r.ended = time.Now()
	links, err := r.w.cluster.States(ctx)
	if err != nil {
		return err
	}
	o.after = links[r.nodes[0]]
	held, err := r.w.cluster.Store(ctx, r.nodes[0]) // an attach brings objects without an ack of each
	if err != nil {
		return err
	}
	found := 0
	for _, object := range held.Objects {
		if version, ok := r.versions[object.Key()]; ok && object.Version == version {
			found++
		}
	}
	if found != len(r.versions) {
		return fmt.Errorf("the gateway holds %d last versions of %d", found, len(r.versions))
	}
	o.runs, err = r.w.objects.ContainerRuns(ctx)
	return err
}
