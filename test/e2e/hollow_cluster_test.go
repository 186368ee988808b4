package e2e_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/frond-edge/frond/internal/toolchain"
)

// nobodyUID is Debian's user nobody, which has no rights.
const nobodyUID = 65534

// TestHollowCluster_UnprivilegedUser runs the frond command as a user without rights: a whole cluster with the hollow
// runtime starts, a pod runs in it, and the cluster is removed completely. The user gets the existing builds.
func TestHollowCluster_UnprivilegedUser(t *testing.T) {
	t.Parallel() // with a cluster of its own
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}
	paths, err := toolchain.Ensure(t.Context(), toolchain.Request{Kube: true, Nats: true, Frond: true}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.MkdirTemp("", "fh") //nolint:usetesting // below a TempDir nobody else may enter, and sockets need a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) }) // best effort in the temporary folder
	// The user's own clone and cache, as if it had built them.
	cache := filepath.Join(home, "cache")
	for _, built := range []string{paths.Kube, paths.NatsServer, paths.Edgecore} {
		entry := filepath.Dir(built)
		copyTree(t, entry, filepath.Join(cache, filepath.Base(entry)))
	}
	copySource(t, filepath.Join(home, "src"))
	if out, err := exec.CommandContext(t.Context(), "chown", "-R", "65534:65534", home).CombinedOutput(); err != nil {
		t.Fatalf("chown: %v: %s", err, out)
	}
	frond := filepath.Join(cache, filepath.Base(filepath.Dir(paths.Frond)), filepath.Base(paths.Frond))
	dir := filepath.Join(home, "c")
	run := func(ctx context.Context, name string, args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = filepath.Join(home, "src")
		cmd.Env = []string{
			"HOME=" + home, "PATH=" + os.Getenv("PATH"), "FROND_CACHE=" + cache, "KUBECONFIG=" + filepath.Join(dir, "kubeconfig"),
			"GOFLAGS=-buildvcs=false", "GOCACHE=" + filepath.Join(home, "go-build"), "XDG_RUNTIME_DIR=" + home,
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobodyUID, Gid: nobodyUID}}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	t.Cleanup(func() {
		if out, err := run(context.WithoutCancel(t.Context()), frond, "dev", "down", "--dir", dir); err != nil {
			t.Errorf("down: %v\n%s", err, out)
		}
	})
	if out, err := run(t.Context(), frond, "dev", "up", "--runtime", "hollow", "--dir", dir); err != nil {
		t.Fatalf("up: %v\n%s", err, out)
	}
	kubectl := filepath.Join(dir, "bin", "kubectl")
	out, err := run(t.Context(), kubectl, "run", "hello", "--image=localhost/frond/http:dev",
		`--overrides={"spec":{"nodeSelector":{"node-role.kubernetes.io/edge":""}}}`)
	if err != nil {
		t.Fatalf("run: %v\n%s", err, out)
	}
	eventually(t, "the pod runs", func(ctx context.Context) string {
		if out, err := run(ctx, kubectl, "get", "pod", "hello", "-o", "wide", "--no-headers"); err != nil || !strings.Contains(out, "Running") {
			return out
		}
		return ""
	})
}

// copySource copies the repository without what git ignores, such as the results that a conformance run is writing.
func copySource(t *testing.T, to string) {
	t.Helper()
	ignored, err := exec.CommandContext(t.Context(), "git", "-C", repositoryRoot, "ls-files", "--others", "--ignored", "--exclude-standard", "--directory").Output()
	if err != nil {
		t.Logf("nothing is left out: %v", err) // no clone
	}
	entries, err := os.ReadDir(repositoryRoot)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !slices.Contains(strings.Split(string(ignored), "\n"), entry.Name()+"/") {
			copyTree(t, filepath.Join(repositoryRoot, entry.Name()), filepath.Join(to, entry.Name()))
		}
	}
}

// copyTree copies a folder or a file; hard links are not enough, as the copies get another owner.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("copy %s: %v: %s", from, err, out)
	}
}
