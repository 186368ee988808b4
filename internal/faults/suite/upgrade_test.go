package suite_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/faults"
	"github.com/frond-edge/frond/internal/toolchain"
)

// workFor is how long objects change in each state of an upgrade.
const workFor = 10 * time.Second

// TestUpgrade runs a cluster with the programs of another commit, OLD, and then upgrades it: the cloudcores and all gateways but
// one read what the old ones wrote, and the one that stays old stays in service; at last it is upgraded too.
func TestUpgrade(t *testing.T) {
	old := os.Getenv("OLD")
	if old == "" {
		t.Skip("needs OLD, the commit to upgrade from, and minutes to build it")
	}
	tree := filepath.Join(t.TempDir(), "old")
	git(t, "worktree", "add", "--detach", tree, old)
	t.Cleanup(func() { git(t, "worktree", "remove", "--force", tree) })
	dir, err := os.MkdirTemp("", "fu-") //nolint:usetesting // sockets need a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	// The old command starts the old programs with the configuration that they know.
	paths, err := toolchain.Ensure(t.Context(), toolchain.Request{Kube: true, Nats: true, Frond: true, Tree: tree}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), paths.Frond, "dev", "up", "--dir", dir, "--runtime", "hollow", "--edges", strconv.Itoa(len(nodes)))
	cmd.Dir = tree
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("start the old programs: %v\n%s", err, out)
	}
	cluster, err := devcluster.Open(dir, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRig(t.Context(), cluster)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.nc.Close()
		if err := r.cluster.Down(context.WithoutCancel(t.Context()), false); err != nil {
			t.Error(err)
		}
	})
	r.work(t)
	upgrade := func(parts ...string) {
		for _, part := range parts {
			r.must(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), part) })
		}
		r.cluster, err = devcluster.Up(t.Context(), devcluster.Options{
			Dir: dir, Talk: os.Stderr, Timeout: 5 * time.Minute,
			Programs: func(ctx context.Context, _ devcluster.Spec) (toolchain.Paths, error) {
				return toolchain.Ensure(ctx, toolchain.Request{Kube: true, Nats: true, Frond: true}, os.Stderr)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		r.work(t)
	}
	upgrade("cloudcore-1", "cloudcore-2", "edge-1", "edge-2")
	upgrade("edge-3")
}

// work changes objects for a while and waits until all agree.
func (r *rig) work(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), workFor)
	defer cancel()
	w := &workload{rig: r, random: faults.Random(setting(t, "SEED", 1), 1<<33)}
	var g errgroup.Group
	g.Go(func() error { return w.run(ctx) })
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	r.settle(t)
	t.Logf("%d changes, %d not confirmed", w.n.Load(), w.failed.Load())
}

func git(t *testing.T, args ...string) {
	t.Helper()
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "git", args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
}
