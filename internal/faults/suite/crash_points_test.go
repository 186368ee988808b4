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

	"github.com/frond-edge/frond/internal/crash"
	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/faults"
)

// fromEmpty are the points that only a gateway with an empty disk is sure to pass: a full snapshot of many objects.
var fromEmpty = []string{"attach.replaced", "save.batched"}

// once are the points that a process passes a single time in its life.
var once = append([]string{"takeover.begun", "takeover.read", "takeover.asked"}, fromEmpty...)

// TestCrashPoints kills a process at each point there is, in turn, while objects change: gateways three at a time, then one
// cloudcore, which has the cluster for itself. Each process comes back with the next point as its fate. A point that is not
// passed fails the test, as does whatever a history tells that should not be. PASSES is how often all this is done: the first
// time a process dies when it passes its point first, then when it has passed it 2, 4, 6 … times alive.
func TestCrashPoints(t *testing.T) {
	shared.settle(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := &workload{rig: shared, random: faults.Random(setting(t, "SEED", 1), 1<<32)}
	var g errgroup.Group
	g.Go(func() error { return w.run(ctx) })
	shed := &workload{rig: shared, random: faults.Random(setting(t, "SEED", 1), 1<<33)}
	g.Go(func() error { return shed.shed(ctx) })
	large := &workload{rig: shared}
	g.Go(func() error { return large.bulk(ctx) })
	g.Go(func() error { return large.boast(ctx) })
	g.Go(func() error { return shared.stir(ctx) })
	for pass := range setting(t, "PASSES", 1) {
		shared.crashes(t, 1+2*pass)
	}
	cancel()
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	shared.settle(t)
	t.Logf("%d changes, %d not confirmed", w.n.Load(), w.failed.Load())
}

// crashes lets processes die at each point when they pass it for the count-th time.
func (r *rig) crashes(t *testing.T, count uint64) {
	t.Helper()
	t.Run("edgecore", func(t *testing.T) {
		lanes := make([][]string, len(nodes))
		for i, point := range crash.Points()["edgecore"] {
			lanes[i%len(nodes)] = append(lanes[i%len(nodes)], point)
		}
		t.Run("lanes", func(t *testing.T) { // returns when all lanes are done
			for i, node := range nodes {
				t.Run(node, func(t *testing.T) {
					t.Parallel()
					r.dieAtEach(t, node, lanes[i], count)
				})
			}
		})
		r.judge(t)
	})
	t.Run("cloudcore", func(t *testing.T) {
		r.must(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), "cloudcore-2") })
		r.dieAtEach(t, "cloudcore-1", crash.Points()["cloudcore"], count)
		r.must(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), "cloudcore-2") })
	})
}

// stir breaks the gateways' connections now and then, so that they attach again and again.
func (r *rig) stir(ctx context.Context) error {
	ticker := time.NewTicker(2 * time.Second)
	defer ticker.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			err := r.do(func(c *devcluster.Cluster) error { return c.Reset(ctx, nodes[i%len(nodes)]) })
			if err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// dieAtEach lets a process die at one point after the other and leaves it running.
func (r *rig) dieAtEach(t *testing.T, part string, points []string, count uint64) {
	t.Helper()
	r.must(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), part) })
	for _, point := range points {
		if slices.Contains(fromEmpty, point) {
			if err := r.wipe(t.Context(), part); err != nil {
				t.Fatal(err)
			}
		}
		fate := point
		if !slices.Contains(once, point) {
			fate += ":" + strconv.FormatUint(count, 10)
		}
		log := r.logEnd(t, part)
		began := time.Now()
		r.must(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), part, crash.Env+"="+fate) })
		r.eventually(t, part+" dies at "+point, patience, func(context.Context) string {
			if r.alive(part) {
				return "it lives"
			}
			return ""
		})
		if said := r.logSince(t, part, log); !strings.Contains(said, crash.Said+point+"\n") {
			t.Errorf("%s died, but not at %s: %s", part, point, said[max(0, len(said)-2000):])
		}
		t.Logf("%s died at %s after %.1fs", part, fate, time.Since(began).Seconds())
	}
	r.must(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), part) })
}

func (r *rig) logPath(part string) string { return filepath.Join(r.cluster.Dir(), "logs", part+".log") }

func (r *rig) logEnd(t *testing.T, part string) int64 {
	t.Helper()
	info, err := os.Stat(r.logPath(part))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func (r *rig) logSince(t *testing.T, part string, from int64) string {
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
