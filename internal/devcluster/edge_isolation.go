package devcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/internal/devcluster/daemon"
	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// cgroupRoot is the mount point of the hierarchies on Debian.
const cgroupRoot = "/sys/fs/cgroup"

// cgroupDirs are the cgroup folders that containers of a gateway need, as absolute paths: one for each v1 controller, or a single
// one for v2.
func cgroupDirs(cgroup string) []string {
	if isCgroupV2() {
		return []string{filepath.Join(cgroupRoot, cgroup)}
	}
	found, err := filepath.Glob(filepath.Join(cgroupRoot, "*", "cgroup.procs"))
	if err != nil {
		return nil // only a malformed pattern
	}
	var dirs []string
	for _, f := range found {
		dirs = append(dirs, filepath.Join(filepath.Dir(f), cgroup))
	}
	return dirs
}

func isCgroupV2() bool {
	_, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers"))
	return err == nil
}

// trackerCgroup is the cgroup of all processes of a gateway outside containers: shims, for example, have no parent that tracks
// them. With v1 it is in the pids hierarchy alone, so that memory is still charged to the user that runs the cluster.
func (e edgeLayout) trackerCgroup() string {
	if isCgroupV2() {
		return filepath.Join(cgroupRoot, e.cgroup, "system")
	}
	return filepath.Join(cgroupRoot, "pids", e.cgroup, "system")
}

// podCgroup is the parent cgroup of a gateway's pods, for the kubelet's cgroupRoot.
func (e edgeLayout) podCgroup() string { return "/" + e.cgroup + "/pods" }

// makeCgroups makes the cgroups of a gateway. In v1 a new cpuset is empty and takes no process until it is filled.
func (e edgeLayout) makeCgroups() error {
	for _, dir := range cgroupDirs(e.cgroup + "/pods") {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
		if isCgroupV2() || !strings.HasPrefix(dir, filepath.Join(cgroupRoot, "cpuset")) {
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
	if err := os.MkdirAll(e.trackerCgroup(), 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	return nil
}

// killCgroups kills every process of a gateway, in containers or not, and removes its cgroups.
func (e edgeLayout) killCgroups(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond) // a killed process leaves its cgroup asynchronously
	defer tick.Stop()
	for {
		pids := e.listPIDs()
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
			return fmt.Errorf("wait for %d processes of %s: %w", len(pids), e.cgroup, context.Cause(ctx))
		case <-tick.C:
		}
	}
	var errs []error
	for _, dir := range cgroupDirs(e.cgroup) {
		errs = append(errs, removeCgroup(dir))
	}
	return errors.Join(errs...)
}

// listPIDs lists all processes in the cgroups of a gateway.
func (e edgeLayout) listPIDs() []int {
	var pids []int
	for _, root := range cgroupDirs(e.cgroup) {
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

// removeCgroup removes a tree of empty cgroups, leaves first.
func removeCgroup(root string) error {
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

// holderScript makes a mount namespace in which / is shared, which mount propagation of pods requires. It gives the gateway
// private copies of host folders and keeps running, so that other processes can enter the namespace.
func holderScript(e edgeLayout) string {
	var script strings.Builder
	script.WriteString("set -e\nmount --make-rshared /\n")
	private := e.privateMounts()
	for _, host := range slices.Sorted(maps.Keys(private)) {
		_, _ = fmt.Fprintf(&script, "mkdir -p %[1]q %[2]q\nmount --bind %[2]q %[1]q\n", host, private[host])
	}
	_, _ = fmt.Fprintf(&script, "echo held > %q\nexec sleep infinity\n", e.holderReadyFile())
	return script.String()
}

// enterNamespaces wraps a command so that it runs in the gateway's network namespace and is tracked; with holder also in its mount
// namespace. Each step of the wrapper execs the next, so the started process id stays valid.
func (c *Cluster) enterNamespaces(edge string, holder daemon.Identity, cmd daemon.Command) daemon.Command {
	e := c.layout.edgeFiles(edge)
	args := []string{
		"-c", `echo 0 > "$0/cgroup.procs" && exec "$@"`, e.trackerCgroup(),
		"nsenter", "--net=" + c.wanNetwork().Path(edge),
	}
	if holder.PID != 0 {
		args = append(args, fmt.Sprintf("--mount=/proc/%d/ns/mnt", holder.PID))
	}
	args = append(args, "--", cmd.Path)
	cmd.Path, cmd.Args = "/bin/sh", append(args, cmd.Args...)
	return cmd
}

func (c *Cluster) wanNetwork() wan.Network { return wan.Network{Prefix: clusterID(c.layout.dir)} }

// writeWan writes the forwarder's configuration and reports whether it changed.
func writeWan(l clusterLayout, s clusterState) (changed bool, err error) {
	cfg := wan.Config{Control: l.wanSocket()}
	edges, hubs := numberedNames("edge", s.Spec.Edges), numberedNames("hub", s.Spec.Hubs)
	if s.Spec.Runtime == Containerd {
		cfg.Namespace = wan.Network{Prefix: clusterID(l.dir)}.Wan()
		cfg.Edges = map[string]string{}
		for i, e := range edges {
			cfg.Edges[wan.Address(i+1)] = e
		}
	}
	for _, h := range hubs {
		target := loopbackAddress(s.Ports[h+"-leaf"])
		if s.Spec.Runtime == Containerd {
			cfg.Routes = append(cfg.Routes, wan.Route{Listen: fmt.Sprintf("%s:%d", wan.Gateway, s.Ports[h+"-leaf"]), Target: target})
			continue
		}
		for _, e := range edges {
			cfg.Routes = append(cfg.Routes, wan.Route{Listen: loopbackAddress(s.Ports[e+"-"+h]), Target: target, Edge: e})
		}
	}
	data, err := json.MarshalIndent(cfg, "", "  ")
	if err != nil {
		return false, fmt.Errorf("encode wan: %w", err)
	}
	if old, err := os.ReadFile(l.wanConfig()); err == nil && string(old) == string(data) {
		return false, nil
	}
	return true, writeFile(l.wanConfig(), data, 0o600)
}

// leafURLs are the addresses of the hub's leaf listeners for a gateway, through the wan.
func leafURLs(s clusterState, edge string) []string {
	var urls []string
	for _, h := range numberedNames("hub", s.Spec.Hubs) {
		if s.Spec.Runtime == Containerd {
			urls = append(urls, fmt.Sprintf("tls://%s:%d", wan.Gateway, s.Ports[h+"-leaf"]))
		} else {
			urls = append(urls, "tls://"+loopbackAddress(s.Ports[edge+"-"+h]))
		}
	}
	return urls
}

// importImages imports the images of the demo into a gateway's containerd. It is quick when they are present.
func (c *Cluster) importImages(ctx context.Context, edge string) error {
	for _, image := range c.state.Programs.Images {
		cmd := exec.CommandContext(ctx, c.state.Programs.Ctr, "-a", c.layout.edgeFiles(edge).containerdSocket(), "-n", "k8s.io",
			"images", "import", image)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("import %s: %w: %s", filepath.Base(image), err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}
