package kubetest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

// Snapshot stops the control plane, copies etcd's data and starts everything again. The copy is removed with the test.
func (c *Cluster) Snapshot(t testing.TB) string {
	t.Helper()
	snapshot := filepath.Join(t.TempDir(), "etcd")
	c.whileStopped(t, func() error { return os.CopyFS(snapshot, os.DirFS(c.path("etcd"))) })
	return snapshot
}

// Restore restores the cluster to a Snapshot. Existing watchers see inconsistent state, as after a real restore.
func (c *Cluster) Restore(t testing.TB, snapshot string) {
	t.Helper()
	c.whileStopped(t, func() error {
		if err := os.RemoveAll(c.path("etcd")); err != nil {
			return err
		}
		return os.CopyFS(c.path("etcd"), os.DirFS(snapshot))
	})
}

// whileStopped runs do while the control plane is stopped.
func (c *Cluster) whileStopped(t testing.TB, do func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	c.stopChildren()
	if err := do(); err != nil {
		t.Fatalf("while the control plane is down: %v", err)
	}
	children := c.children
	c.children = nil
	for _, child := range children {
		if err := c.startChild(child.cmd.Path, child.name, child.cmd.Args[2:]...); err != nil {
			t.Fatal(err)
		}
		if child.name == "kube-apiserver" {
			if err := c.awaitReady(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// stopChildren stops the children in reverse order, each awaited: an apiserver must not outlive its etcd.
func (c *Cluster) stopChildren() {
	for _, child := range slices.Backward(c.children) {
		_ = child.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-child.done:
		case <-time.After(10 * time.Second):
			_ = child.cmd.Process.Kill()
			<-child.done
		}
	}
}
