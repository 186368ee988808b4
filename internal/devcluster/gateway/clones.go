package gateway

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/internal/devcluster/daemon"
	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/render"
	"github.com/frond-edge/frond/internal/devcluster/request"
)

// Clones runs copies of gateways. A copy of a gateway's disk gives two agents with one identity. A copy is not a component of the
// cluster: only LaunchClone starts it, and Down ends it.
type Clones struct{ f *folder.Folder }

// NewClones returns the copies of a cluster's gateways.
func NewClones(f *folder.Folder) *Clones { return &Clones{f: f} }

// CopyDisk copies the disk of a gateway that does not run, and replaces an earlier copy.
func (c *Clones) CopyDisk(ctx context.Context, edge string) error {
	return c.f.Update(ctx, func() error {
		if err := c.f.CheckStopped(edge); err != nil {
			return err
		}
		if c.f.State.Processes[folder.CloneName(edge)].Alive() {
			return fmt.Errorf("the copy of %s runs: kill it first", edge)
		}
		to := c.f.Layout.Gateway(folder.CloneName(edge))
		if err := os.RemoveAll(to.Dir); err != nil {
			return fmt.Errorf("copy the disk of %s: %w", edge, err)
		}
		if err := os.MkdirAll(to.Dir, 0o755); err != nil {
			return fmt.Errorf("copy the disk of %s: %w", edge, err)
		}
		out, err := exec.CommandContext(ctx, "cp", "-a", c.f.Layout.Gateway(edge).StoreDir(), to.StoreDir()).CombinedOutput()
		if err != nil {
			return fmt.Errorf("copy the disk of %s: %w: %s", edge, err, out)
		}
		return nil
	})
}

// LaunchClone starts an agent on the copy of a gateway's disk, with the gateway's name and credentials, over the gateway's
// link. It does not wait until it is ready. The copy has a history of its own: see CloneHistory.
func (c *Clones) LaunchClone(ctx context.Context, edge string) error {
	return c.f.Update(ctx, func() error {
		i := slices.Index(folder.Names("edge", c.f.State.Spec.Edges), edge)
		if i < 0 || c.f.State.Spec.Runtime != folder.Hollow {
			return fmt.Errorf("%q is no gateway with the hollow runtime: its copy cannot run", edge)
		}
		name := folder.CloneName(edge)
		if c.f.State.Processes[name].Alive() {
			return fmt.Errorf("%s runs already", name)
		}
		var err error
		names := append(folder.PortNames(c.f.State.Spec), name, name+"-api", name+"-kubelet")
		if c.f.State.Ports, err = folder.ChoosePorts(c.f.State.Ports, names, 0, folder.PortFree); err != nil {
			return err
		}
		e := c.f.Layout.Gateway(name)
		hash, err := render.HubCAHash(c.f.Layout)
		if err != nil {
			return err
		}
		cfg := render.EdgecoreConfig(c.f.Layout, c.f.State, hash, edge, i+1)
		cfg.Dir, cfg.Listen, cfg.History = e.StoreDir(), folder.Loopback(c.f.State.Ports[name]), e.HistoryFile()
		cfg.Devices = config.Devices{} // the port is the original's
		cfg.Kubelet.StaticPodPath, cfg.Kubelet.Port = e.ManifestDir(), int32(c.f.State.Ports[name+"-kubelet"])
		cfg.LocalAPI.Socket, cfg.LocalAPI.Address = e.APISocket(), folder.Loopback(c.f.State.Ports[name+"-api"])
		for _, dir := range []string{e.ManifestDir(), e.Run} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("make folder of %s: %w", name, err)
			}
		}
		if err := render.WriteYAML(e.ConfigFile(), cfg); err != nil {
			return err
		}
		id, err := daemon.Start(daemon.Command{
			Path: c.f.State.Programs.Edgecore, Args: []string{"--config", e.ConfigFile()}, Log: c.f.Layout.LogFile(name), Dir: c.f.Layout.Dir,
		})
		if err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
		c.f.State.Processes[name] = id
		return c.f.Save()
	})
}

// KillClone ends the copy of a gateway with SIGKILL. A copy that does not run is no error.
func (c *Clones) KillClone(ctx context.Context, edge string) error {
	return c.f.Update(ctx, func() error { return c.f.State.Processes[folder.CloneName(edge)].Kill(ctx) })
}

// CloneReady returns an error unless the copy of a gateway is ready.
func (c *Clones) CloneReady(ctx context.Context, edge string) error {
	return request.Component(ctx, c.f, request.Plain, folder.CloneName(edge), "/readyz", nil)
}

// CloneHistory returns the file of the copy's history.
func (c *Clones) CloneHistory(edge string) string {
	return c.f.Layout.Gateway(folder.CloneName(edge)).HistoryFile()
}

// KillClones ends all copies.
func (c *Clones) KillClones(ctx context.Context) error {
	for name, id := range c.f.State.Processes {
		if !strings.HasSuffix(name, folder.CloneName("")) {
			continue
		}
		if err := id.Kill(ctx); err != nil {
			return fmt.Errorf("stop %s: %w", name, err)
		}
	}
	return nil
}
