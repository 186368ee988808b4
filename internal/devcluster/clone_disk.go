package devcluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/frond-edge/frond/internal/devcluster/daemon"
)

// A copy of a gateway's disk gives two agents with one identity. The copy is not a component of the cluster: only LaunchClone starts
// it, and Down ends it.

// cloneName names the copy of a gateway.
func cloneName(edge string) string { return edge + "-clone" }

// CopyDisk copies the disk of a gateway that does not run, and replaces an earlier copy.
func (c *Cluster) CopyDisk(ctx context.Context, edge string) error {
	return c.withLockedState(ctx, func() error {
		if err := c.mustBeStopped(edge); err != nil {
			return err
		}
		if c.state.Processes[cloneName(edge)].Alive() {
			return fmt.Errorf("the copy of %s runs: kill it first", edge)
		}
		to := c.layout.edgeFiles(cloneName(edge))
		if err := os.RemoveAll(to.dir); err != nil {
			return fmt.Errorf("copy the disk of %s: %w", edge, err)
		}
		if err := os.MkdirAll(to.dir, 0o755); err != nil {
			return fmt.Errorf("copy the disk of %s: %w", edge, err)
		}
		out, err := exec.CommandContext(ctx, "cp", "-a", c.layout.edgeFiles(edge).storeDir(), to.storeDir()).CombinedOutput()
		if err != nil {
			return fmt.Errorf("copy the disk of %s: %w: %s", edge, err, out)
		}
		return nil
	})
}

// LaunchClone starts an agent on the copy of a gateway's disk, with the gateway's name and credentials, over the gateway's
// link. It does not wait until it is ready. The copy has a history of its own: see CloneHistory.
func (c *Cluster) LaunchClone(ctx context.Context, edge string) error {
	return c.withLockedState(ctx, func() error {
		i := slices.Index(numberedNames("edge", c.state.Spec.Edges), edge)
		if i < 0 || c.state.Spec.Runtime != Hollow {
			return fmt.Errorf("%q is no gateway with the hollow runtime: its copy cannot run", edge)
		}
		name := cloneName(edge)
		if c.state.Processes[name].Alive() {
			return fmt.Errorf("%s runs already", name)
		}
		var err error
		names := append(portNames(c.state.Spec), name, name+"-api", name+"-kubelet")
		if c.state.Ports, err = choosePorts(c.state.Ports, names, 0, portFree); err != nil {
			return err
		}
		e := c.layout.edgeFiles(name)
		hash, err := hubCAHash(c.layout)
		if err != nil {
			return err
		}
		cfg := edgecoreConfig(c.layout, c.state, hash, edge, i+1)
		cfg.Dir, cfg.Listen, cfg.History = e.storeDir(), loopbackAddress(c.state.Ports[name]), e.historyFile()
		cfg.Kubelet.StaticPodPath, cfg.Kubelet.Port = e.manifestDir(), int32(c.state.Ports[name+"-kubelet"])
		cfg.LocalAPI.Socket, cfg.LocalAPI.Address = e.apiSocket(), loopbackAddress(c.state.Ports[name+"-api"])
		for _, dir := range []string{e.manifestDir(), e.run} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("make folder of %s: %w", name, err)
			}
		}
		if err := writeYAML(e.configFile(), cfg); err != nil {
			return err
		}
		id, err := daemon.Start(daemon.Command{
			Path: c.state.Programs.Edgecore, Args: []string{"--config", e.configFile()}, Log: c.layout.logFile(name), Dir: c.layout.dir,
		})
		if err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
		c.state.Processes[name] = id
		return c.saveState()
	})
}

// KillClone ends the copy of a gateway with SIGKILL. A copy that does not run is no error.
func (c *Cluster) KillClone(ctx context.Context, edge string) error {
	return c.withLockedState(ctx, func() error { return c.state.Processes[cloneName(edge)].Kill(ctx) })
}

// CloneReady returns an error unless the copy of a gateway is ready.
func (c *Cluster) CloneReady(ctx context.Context, edge string) error {
	return c.requestComponent(ctx, plainClient, cloneName(edge), "/readyz", nil)
}

// CloneHistory returns the file of the copy's history.
func (c *Cluster) CloneHistory(edge string) string {
	return c.layout.edgeFiles(cloneName(edge)).historyFile()
}

// killClones ends all copies.
func (c *Cluster) killClones(ctx context.Context) error {
	for name, id := range c.state.Processes {
		if !strings.HasSuffix(name, cloneName("")) {
			continue
		}
		if err := id.Kill(ctx); err != nil {
			return fmt.Errorf("stop %s: %w", name, err)
		}
	}
	return nil
}

// cloneNames lists the folders of all possible copies.
func cloneNames(s Spec) []string {
	var names []string
	for _, e := range numberedNames("edge", s.Edges) {
		names = append(names, cloneName(e))
	}
	return names
}
