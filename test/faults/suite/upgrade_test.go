package suite_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/toolchain"
	"github.com/frond-edge/frond/test/faults"
)

// workFor is how long objects change in each state of an upgrade.
const workFor = 5 * time.Second

// TestUpgrade runs a cluster with the programs of another commit, OLD or by default the parent commit, and then upgrades it. The
// cloudcores and all gateways but one read the data of the old ones, and the remaining old gateway stays in service; finally it is
// upgraded too.
func TestUpgrade(t *testing.T) {
	old := os.Getenv("OLD")
	if old == "" {
		old = "HEAD~1"
	}
	tree := checkOut(t, old)
	dir, err := os.MkdirTemp("", "fu-") //nolint:usetesting // sockets need a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	// The old command starts the old programs with their own configuration.
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
	r, err := newTestCluster(t.Context(), cluster)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.nc.Close()
		if err := r.cluster.Down(context.WithoutCancel(t.Context()), false); err != nil {
			t.Error(err)
		}
	})
	r.runWorkload(t)
	upgrade := func(parts ...string) {
		for _, part := range parts {
			r.mustCluster(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), part) })
		}
		r.cluster, err = devcluster.Up(t.Context(), devcluster.Options{
			Dir: dir, Progress: os.Stderr, Timeout: 5 * time.Minute,
			Programs: func(ctx context.Context, _ devcluster.Spec) (toolchain.Paths, error) {
				return toolchain.Ensure(ctx, toolchain.Request{Kube: true, Nats: true, Frond: true}, os.Stderr)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		r.runWorkload(t)
	}
	upgrade("cloudcore-1", "cloudcore-2", "edge-1", "edge-2")
	upgrade("edge-3")
}

// runWorkload changes objects for a while and waits until all agree.
func (r *testCluster) runWorkload(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), workFor)
	defer cancel()
	w := &workload{rig: r, random: faults.Random(envUint(t, "SEED", 1), 1<<33)}
	var g errgroup.Group
	g.Go(func() error { return w.run(ctx) })
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	r.awaitSettled(t)
	t.Logf("%d changes, %d not confirmed", w.n.Load(), w.failed.Load())
}

// checkOut extracts the source tree of a commit. In a clone without the commit, such as a shallow one, the test is skipped.
func checkOut(t *testing.T, commit string) (tree string) {
	t.Helper()
	id, err := exec.CommandContext(t.Context(), "git", "rev-parse", "--verify", "--quiet", commit+"^{tree}").Output()
	if err != nil {
		if os.Getenv("OLD") != "" {
			t.Fatalf("this clone does not hold %s", commit)
		}
		t.Skipf("this clone does not hold %s, whose programs are upgraded from: it is shallow, or no clone", commit)
	}
	tree = t.TempDir()
	tar, err := exec.CommandContext(t.Context(), "git", "-C", repositoryRoot(t), "archive", strings.TrimSpace(string(id))).Output()
	if err != nil {
		t.Fatalf("git archive %s: %v", commit, err)
	}
	unpack := exec.CommandContext(t.Context(), "tar", "-x", "-C", tree)
	unpack.Stdin = bytes.NewReader(tar)
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("unpack %s: %v: %s", commit, err, out)
	}
	return tree
}

// repositoryRoot returns the folder of the clone; git archive takes only what is below the working folder.
func repositoryRoot(t *testing.T) string {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(dir))
}
