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

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/devcluster/cgroups"
	"github.com/frond-edge/frond/internal/devcluster/devices"
	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/gateway"
	"github.com/frond-edge/frond/internal/devcluster/process"
)

// teardown removes what Up made.
type teardown struct {
	f       *folder.Folder
	catalog *catalog
	clones  *gateway.Clones
	disks   *gateway.Disks
	devices *devices.Devices
}

// downTimeout bounds Down; each component has its own, shorter grace period before it is killed.
const downTimeout = 90 * time.Second

// stopAll stops the components in reverse order of stages, those of one stage together. A gateway's last reports need the stages
// below, and the apiserver must not outlive its etcd.
func (t teardown) stopAll(ctx context.Context) []error {
	parts := t.catalog.all()
	errs := []error{t.clones.KillClones(ctx), t.devices.StopAllDevices(ctx)}
	for stage := process.StageEdge; stage >= process.StageBase; stage-- {
		var g errgroup.Group
		for _, p := range parts {
			id := t.f.State.Processes[p.Name]
			if p.Stage != stage || p.Edge != "" && p.Stage != process.StageEdge || !id.Alive() {
				continue // a gateway's containerd and holder end after its pods
			}
			g.Go(func() error {
				if err := id.Stop(ctx, p.Grace); err != nil {
					return fmt.Errorf("stop %s: %w", p.Name, err)
				}
				return nil
			})
		}
		errs = append(errs, g.Wait())
	}
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

// removeGateways ends each gateway's pods with their shims, its containerd and its holder, which frees its mounts, and
// removes its cgroups and network namespaces.
func (t teardown) removeGateways(ctx context.Context) []error {
	var errs []error
	for i, e := range folder.Names("edge", t.f.State.Spec.Edges) {
		if err := cgroups.Kill(ctx, t.f.Layout.Gateway(e).Cgroup); err != nil {
			errs = append(errs, err)
		}
		for _, name := range []string{fmt.Sprintf("containerd-%d", i+1), folder.HolderName(e)} {
			if err := t.f.State.Processes[name].Kill(ctx); err != nil { // a process that has left the cgroup
				errs = append(errs, err)
			}
		}
	}
	for _, dir := range cgroups.Dirs(folder.ID(t.f.Layout.Dir)) {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dir, err))
		}
	}
	if err := t.f.Network().Down(ctx); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// removeFiles removes what Up made, and the folder if nothing else is in it.
func (t teardown) removeFiles(keepLogs bool) error {
	l, s := t.f.Layout, t.f.State
	for _, e := range folder.Names("edge", s.Spec.Edges) {
		t.disks.UnmountDisk(e)
	}
	names := []string{
		"bin", "pki", "nats", names.Namespace, "etcd", "env", "wan.json", "egress.yaml", "kubeconfig",
		"controller-manager.kubeconfig", "scheduler.kubeconfig", "cloudcore.kubeconfig", "cloudcore.token",
		"metrics-server.kubeconfig", "metrics-server.token", "metrics-server.yaml", folder.DevicesDir,
	}
	for kind, n := range map[string]int{"hub": s.Spec.Hubs, "cloudcore": s.Spec.Cloudcores, "edge": s.Spec.Edges} {
		names = append(names, folder.Names(kind, n)...)
	}
	names = append(names, folder.CloneNames(s.Spec)...)
	if !keepLogs {
		names = append(names, "logs")
	}
	for _, name := range names {
		if err := os.RemoveAll(l.Path(name)); err != nil {
			return fmt.Errorf("remove files: %w", err)
		}
	}
	if err := os.RemoveAll(l.Run); err != nil {
		return fmt.Errorf("remove run folder: %w", err)
	}
	for _, name := range []string{"state.json", "lock"} { // last, so that Down can be repeated until then
		if err := os.Remove(l.Path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove files: %w", err)
		}
	}
	if err := os.Remove(l.Dir); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove folder: %w", err)
	}
	return nil
}
