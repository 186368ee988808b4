// Package cgroups makes and removes the cgroups of a development cluster's gateways, and kills the processes in them.
//
// A gateway is named by its cgroup, relative to the root of each hierarchy.
package cgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/internal/devcluster/daemon"
)

// Root is the mount point of the hierarchies on Debian.
const Root = "/sys/fs/cgroup"

// Dirs are the cgroup folders that containers of a gateway need, as absolute paths: one for each v1 controller, or a single
// one for v2.
func Dirs(cgroup string) []string {
	if isV2() {
		return []string{filepath.Join(Root, cgroup)}
	}
	found, err := filepath.Glob(filepath.Join(Root, "*", "cgroup.procs"))
	if err != nil {
		return nil // only a malformed pattern
	}
	var dirs []string
	for _, f := range found {
		dirs = append(dirs, filepath.Join(filepath.Dir(f), cgroup))
	}
	return dirs
}

func isV2() bool {
	_, err := os.Stat(filepath.Join(Root, "cgroup.controllers"))
	return err == nil
}

// Tracker is the cgroup of all processes of a gateway outside containers: shims, for example, have no parent that tracks
// them. With v1 it is in the pids hierarchy alone, so that memory is still charged to the user that runs the cluster.
func Tracker(gateway string) string {
	if isV2() {
		return filepath.Join(Root, gateway, "system")
	}
	return filepath.Join(Root, "pids", gateway, "system")
}

// PodParent is the parent cgroup of a gateway's pods, for the kubelet's cgroupRoot.
func PodParent(gateway string) string { return "/" + gateway + "/pods" }

// Make makes the cgroups of a gateway. In v1 a new cpuset is empty and takes no process until it is filled.
func Make(gateway string) error {
	for _, dir := range Dirs(gateway + "/pods") {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
		if isV2() || !strings.HasPrefix(dir, filepath.Join(Root, "cpuset")) {
			continue
		}
		for _, d := range []string{filepath.Dir(filepath.Dir(dir)), filepath.Dir(dir), dir} {
			for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
				value, err := os.ReadFile(filepath.Join(filepath.Dir(d), f))
				if err != nil {
					return fmt.Errorf("read cpuset: %w", err)
				}
				if err := os.WriteFile(filepath.Join(d, f), value, 0o644); err != nil {
					return fmt.Errorf("fill cpuset: %w", err)
				}
			}
		}
	}
	if err := os.MkdirAll(Tracker(gateway), 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	return nil
}

// Kill kills every process of a gateway, in containers or not, and removes its cgroups.
func Kill(ctx context.Context, gateway string) error {
	tick := time.NewTicker(20 * time.Millisecond) // a killed process leaves its cgroup asynchronously
	defer tick.Stop()
	for {
		pids := listPIDs(gateway)
		if len(pids) == 0 {
			break
		}
		for _, pid := range pids {
			if id, err := daemon.Identify(pid); err == nil {
				_ = id.Signal(unix.SIGKILL) // an exited process is no error; a survivor is killed in the next round
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %d processes of %s: %w", len(pids), gateway, context.Cause(ctx))
		case <-tick.C:
		}
	}
	var errs []error
	for _, dir := range Dirs(gateway) {
		errs = append(errs, removeTree(dir))
	}
	return errors.Join(errs...)
}

// listPIDs lists all processes in the cgroups of a gateway.
func listPIDs(gateway string) []int {
	var pids []int
	for _, root := range Dirs(gateway) {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != "cgroup.procs" {
				return nil //nolint:nilerr // a cgroup that vanished holds no process
			}
			data, _ := os.ReadFile(path) // the same
			for line := range strings.Lines(string(data)) {
				if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 {
					pids = append(pids, pid)
				}
			}
			return nil
		})
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// removeTree removes a tree of empty cgroups, leaves first.
func removeTree(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	slices.Reverse(dirs)
	for _, d := range dirs {
		if rm := unix.Rmdir(d); rm != nil && !errors.Is(rm, unix.ENOENT) {
			err = errors.Join(err, fmt.Errorf("remove cgroup %s: %w", d, rm))
		}
	}
	return err
}
