package loadtest

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/internal/devcluster/wan"
	"github.com/frond-edge/frond/loadtest/workload"
)

// slowRoundTrip is the round trip of a slow link.
const slowRoundTrip = 100 * time.Millisecond

func createObjects(ctx context.Context, r *round) (err error) {
	r.versions, err = r.w.objects.CreateConfigMaps(ctx, r.names)
	return err
}

func updateObjects(ctx context.Context, r *round) (err error) {
	r.versions, err = r.w.objects.UpdateConfigMaps(ctx, r.names)
	return err
}

// mountingPods returns a pod for each node that mounts all objects.
func (r *round) mountingPods() (pods []*corev1.Pod) {
	for _, node := range r.nodes {
		pods = append(pods, workload.PausePod(r.object+"-"+node, node, r.names))
	}
	return pods
}

// bindPods creates the pods that mount the objects, mountObjects also waits until they run.
func bindPods(ctx context.Context, r *round) error {
	return r.w.objects.CreatePods(ctx, r.mountingPods())
}

func mountObjects(ctx context.Context, r *round) error {
	_, _, err := r.w.objects.LaunchPods(ctx, r.mountingPods()...)
	return err
}

// launchPod creates an empty pod and waits until it runs.
func launchPod(ctx context.Context, r *round) (err error) {
	r.began, r.ended, err = r.w.objects.LaunchPods(ctx, workload.PausePod(r.names[0], r.nodes[0], nil))
	return err
}

// awaitDelivered waits until all nodes have acked the objects' versions.
func awaitDelivered(ctx context.Context, r *round) (err error) {
	r.ended, err = r.w.acks.Await(ctx, r.nodes, r.versions)
	return err
}

func removePods(ctx context.Context, r *round) error    { return r.w.objects.DeletePods(ctx) }
func removeObjects(ctx context.Context, r *round) error { return r.w.objects.DeleteConfigMaps(ctx) }
func awaitTombstones(ctx context.Context, r *round) error {
	return r.w.acks.AwaitReleased(ctx, r.w.edges)
}
func slowDownLink(ctx context.Context, r *round) error { return r.shapeLink(ctx, slowRoundTrip) }
func restoreLink(ctx context.Context, r *round) error  { return r.shapeLink(ctx, 0) }
func awaitCloudcores(ctx context.Context, r *round) error {
	return awaitMembers(ctx, r.w, "cloudcore-1", "cloudcore-2")
}

// shapeLink sets the round trip of the first node's link.
func (r *round) shapeLink(ctx context.Context, roundTrip time.Duration) error {
	return r.w.cluster.Shape(ctx, r.nodes[0], wan.Shape{Delay: roundTrip / 2})
}

// chooseOwner chooses the cloudcore that killChosen kills: the one that serves the first node.
func chooseOwner(ctx context.Context, r *round) (err error) {
	r.killed, err = findOwner(ctx, r.w, r.nodes[0])
	return err
}

func killChosen(ctx context.Context, r *round) error {
	if err := r.w.cluster.Kill(ctx, r.killed); err != nil {
		return fmt.Errorf("kill %s: %w", r.killed, err)
	}
	return nil
}

func startKilled(ctx context.Context, r *round) error { return r.w.cluster.Start(ctx, r.killed) }

// leaveOneCloudcore kills the second cloudcore.
func leaveOneCloudcore(ctx context.Context, r *round) error {
	r.killed = "cloudcore-2"
	if err := killChosen(ctx, r); err != nil {
		return err
	}
	return awaitMembers(ctx, r.w, "cloudcore-1")
}
