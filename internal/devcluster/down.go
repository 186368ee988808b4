package devcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/api/identity"
)

// downTimeout bounds Down; each component has its own, shorter grace period before it is killed.
const downTimeout = 90 * time.Second

// Down stops and removes everything: processes, pods, mounts, namespaces, cgroups and files. With keepLogs the logs
// stay. It continues after errors and may be repeated.
func (c *Cluster) Down(ctx context.Context, keepLogs bool) error {
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	return c.withLockedState(ctx, func() error {
		errs := c.stopAll(ctx)
		if c.state.Spec.Runtime == Containerd {
			errs = append(errs, c.removeEdges(ctx)...)
		}
		if len(errs) > 0 {
			return errors.Join(errs...) // state.json stays, so that Down can be repeated
		}
		if err := c.removeFiles(keepLogs); err != nil {
			return err
		}
		c.logProgress("all is gone")
		return nil
	})
}

// stopAll stops the components in reverse order of stages, those of one stage together. A gateway's last reports need the stages
// below, and the apiserver must not outlive its etcd.
func (c *Cluster) stopAll(ctx context.Context) []error {
	parts := c.allComponents()
	errs := []error{c.killClones(ctx)}
	for stage := stageEdge; stage >= stageBase; stage-- {
		var g errgroup.Group
		for _, p := range parts {
			id := c.state.Processes[p.name]
			if p.stage != stage || p.edge != "" && p.stage != stageEdge || !id.Alive() {
				continue // a gateway's containerd and holder end after its pods
			}
			g.Go(func() error {
				if err := id.Stop(ctx, p.grace); err != nil {
					return fmt.Errorf("stop %s: %w", p.name, err)
				}
				return nil
			})
		}
		errs = append(errs, g.Wait())
	}
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

// removeEdges ends each gateway's pods with their shims, its containerd and its holder, which frees its mounts, and
// removes its cgroups and network namespaces.
func (c *Cluster) removeEdges(ctx context.Context) []error {
	var errs []error
	for i, e := range numberedNames("edge", c.state.Spec.Edges) {
		if err := c.layout.edgeFiles(e).killCgroups(ctx); err != nil {
			errs = append(errs, err)
		}
		for _, name := range []string{fmt.Sprintf("containerd-%d", i+1), c.holderName(e)} {
			if err := c.state.Processes[name].Kill(ctx); err != nil { // a process that has left the cgroup
				errs = append(errs, err)
			}
		}
	}
	for _, dir := range cgroupDirs(clusterID(c.layout.dir)) {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dir, err))
		}
	}
	if err := c.wanNetwork().Down(ctx); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// removeFiles removes what Up made, and the folder if nothing else is in it.
func (c *Cluster) removeFiles(keepLogs bool) error {
	l, s := c.layout, c.state
	for _, e := range numberedNames("edge", s.Spec.Edges) {
		c.releaseDisk(e)
	}
	names := []string{
		"bin", "pki", "nats", identity.Namespace, "etcd", "env", "wan.json", "egress.yaml", "kubeconfig",
		"controller-manager.kubeconfig", "scheduler.kubeconfig", "cloudcore.kubeconfig", "cloudcore.token",
		"metrics-server.kubeconfig", "metrics-server.token", "metrics-server.yaml",
	}
	for kind, n := range map[string]int{"hub": s.Spec.Hubs, "cloudcore": s.Spec.Cloudcores, "edge": s.Spec.Edges} {
		names = append(names, numberedNames(kind, n)...)
	}
	names = append(names, cloneNames(s.Spec)...)
	if !keepLogs {
		names = append(names, "logs")
	}
	for _, name := range names {
		if err := os.RemoveAll(l.path(name)); err != nil {
			return fmt.Errorf("remove files: %w", err)
		}
	}
	if err := os.RemoveAll(l.run); err != nil {
		return fmt.Errorf("remove run folder: %w", err)
	}
	for _, name := range []string{"state.json", "lock"} { // last, so that Down can be repeated until then
		if err := os.Remove(l.path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove files: %w", err)
		}
	}
	if err := os.Remove(l.dir); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove folder: %w", err)
	}
	return nil
}
