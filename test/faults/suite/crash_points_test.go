package suite_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/failpoint"
	"github.com/frond-edge/frond/test/faults"
)

// emptyDiskPoints are the points that only a gateway with an empty disk is sure to reach: a full snapshot of many objects.
var emptyDiskPoints = []string{"attach.replaced", "save.batched"}

// oncePoints are the points that a process reaches a single time in its life.
var oncePoints = append([]string{"takeover.begun", "takeover.read", "takeover.asked"}, emptyDiskPoints...)

// TestCrashPoints kills a process at every crash point in turn while objects change: three gateways at a time, then one
// cloudcore, as the only one. Each process restarts with the next crash point set. A point that is never
// reached fails the test, as does a violation in a history. PASSES is the number of repetitions: in the first, a process dies when it
// first reaches its point, in later ones after it has passed the point 2, 4, 6 … times.
func TestCrashPoints(t *testing.T) {
	shared.awaitSettled(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := &workload{rig: shared, random: faults.Random(envUint(t, "SEED", 1), 1<<32)}
	var g errgroup.Group
	g.Go(func() error { return w.run(ctx) })
	shed := &workload{rig: shared, random: faults.Random(envUint(t, "SEED", 1), 1<<33)}
	g.Go(func() error { return shed.createDeletedPods(ctx) })
	large := &workload{rig: shared}
	g.Go(func() error { return large.createLargeMaps(ctx) })
	g.Go(func() error { return large.createLargeEvents(ctx) })
	g.Go(func() error { return shared.resetLinks(ctx) })
	for pass := range envUint(t, "PASSES", 1) {
		shared.killAtEachPoint(t, 1+2*pass)
	}
	cancel()
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	shared.awaitSettled(t)
	t.Logf("%d changes, %d not confirmed", w.n.Load(), w.failed.Load())
}

// killAtEachPoint kills processes at each point when they reach it for the count-th time.
func (r *testCluster) killAtEachPoint(t *testing.T, count uint64) {
	t.Helper()
	t.Run("edgecore", func(t *testing.T) {
		lanes := make([][]string, len(nodes))
		for i, point := range failpoint.Points()["edgecore"] {
			lanes[i%len(nodes)] = append(lanes[i%len(nodes)], point)
		}
		t.Run("lanes", func(t *testing.T) { // returns when all lanes are done
			for i, node := range nodes {
				t.Run(node, func(t *testing.T) {
					t.Parallel()
					r.killAtPoints(t, node, lanes[i], count)
				})
			}
		})
		r.checkHistories(t)
	})
	t.Run("cloudcore", func(t *testing.T) {
		r.mustCluster(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), "cloudcore-2") })
		r.killAtPoints(t, "cloudcore-1", failpoint.Points()["cloudcore"], count)
		r.mustCluster(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), "cloudcore-2") })
	})
}

// resetLinks breaks the gateways' connections at intervals, so that they attach repeatedly.
func (r *testCluster) resetLinks(ctx context.Context) error {
	ticker := time.NewTicker(2 * time.Second)
	defer ticker.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			err := r.withCluster(func(c *devcluster.Cluster) error { return c.Reset(ctx, nodes[i%len(nodes)]) })
			if err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// killAtPoints kills a process at one point after the other and leaves it running.
func (r *testCluster) killAtPoints(t *testing.T, part string, points []string, count uint64) {
	t.Helper()
	r.mustCluster(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), part) })
	for _, point := range points {
		if slices.Contains(emptyDiskPoints, point) {
			if err := r.wipeDisk(t.Context(), part); err != nil {
				t.Fatal(err)
			}
		}
		fate := point
		if !slices.Contains(oncePoints, point) {
			fate += ":" + strconv.FormatUint(count, 10)
		}
		log := r.logEnd(t, part)
		began := time.Now()
		r.mustCluster(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), part, failpoint.Env+"="+fate) })
		r.eventually(t, part+" dies at "+point, waitTimeout, func(context.Context) string {
			if r.isRunning(part) {
				return "it lives"
			}
			return ""
		})
		if said := r.logSince(t, part, log); !strings.Contains(said, failpoint.ReachedPrefix+point+"\n") {
			t.Errorf("%s died, but not at %s: %s", part, point, said[max(0, len(said)-2000):])
		}
		t.Logf("%s died at %s after %.1fs", part, fate, time.Since(began).Seconds())
	}
	r.mustCluster(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), part) })
}

func (r *testCluster) logPath(part string) string {
	return filepath.Join(r.cluster.Dir(), "logs", part+".log")
}

func (r *testCluster) logEnd(t *testing.T, part string) int64 {
	t.Helper()
	info, err := os.Stat(r.logPath(part))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func (r *testCluster) logSince(t *testing.T, part string, from int64) string {
	t.Helper()
	f, err := os.Open(r.logPath(part))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(said)
}
