package devcluster

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/cgroups"
	"github.com/frond-edge/frond/internal/devcluster/daemon"
	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/process"
	"github.com/frond-edge/frond/internal/devcluster/render"
)

func (c *Cluster) bringUp(ctx context.Context) error {
	if c.f.State.Processes == nil {
		c.f.State.Processes = map[string]daemon.Identity{}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(c.f.Layout.Dir)) // never fails
	var reserved folder.PortReservation
	defer func() { _ = reserved.Release() }() // after an error; otherwise it is below
	var err error
	if c.f.State.Ports, err = folder.ChoosePorts(c.f.State.Ports, folder.PortNames(c.f.State.Spec), h.Sum32(), reserved.Take); err != nil {
		return err
	}
	if err := c.f.Save(); err != nil {
		return err
	}
	if err := c.writeFiles(ctx); err != nil {
		return err
	}
	if err := reserved.Release(); err != nil {
		return err
	}
	parts := c.catalog.all()
	if err := c.supervisor.CheckPortsFree(parts...); err != nil {
		return err
	}
	var stage []process.Component
	for i, p := range parts {
		stage = append(stage, p)
		if p.Stage == process.StageEdge && (i == 0 || parts[i-1].Stage != process.StageEdge) {
			if err := c.install.WriteTokens(ctx); err != nil {
				return err
			}
		}
		if i+1 == len(parts) || parts[i+1].Stage != p.Stage {
			if err := c.supervisor.StartStage(ctx, stage); err != nil {
				return err
			}
			stage = nil
		}
	}
	if err := c.install.AwaitServices(ctx); err != nil {
		return err
	}
	c.f.Logf("all %d parts are ready", len(parts))
	return nil
}

// stopEdgesWithoutBroker ends the edgecores of a cluster that gets devices now: they read their configuration at their start, which follows.
func (c *Cluster) stopEdgesWithoutBroker(ctx context.Context, spec Spec) error {
	if c.f.State.Spec.Devices || !spec.Devices {
		return nil
	}
	for _, e := range folder.Names("edge", c.f.State.Spec.Edges) {
		if id := c.f.State.Processes[e]; id.Alive() {
			c.f.Logf("%s starts again, with a broker", e)
			if err := id.Stop(ctx, edgeGrace); err != nil {
				return fmt.Errorf("stop %s: %w", e, err)
			}
		}
	}
	return nil
}

// writeFiles makes folders, files, namespaces and cgroups, and makes running components reload changed files.
func (c *Cluster) writeFiles(ctx context.Context) error {
	l, s := c.f.Layout, c.f.State
	if err := os.MkdirAll(l.Run, 0o755); err != nil {
		return fmt.Errorf("make run folder: %w", err)
	}
	if err := render.LinkPrograms(l, s); err != nil {
		return err
	}
	if err := render.WriteControlPlane(l, s.Ports); err != nil {
		return err
	}
	if err := render.WriteMetricsServer(l, s); err != nil {
		return err
	}
	files, renewed, err := render.MakeMaterial(l, s)
	if err != nil {
		return err
	}
	changed, err := render.WriteHub(l, s, files)
	if err != nil {
		return err
	}
	if renewed {
		changed = folder.Names("hub", s.Spec.Hubs)
	}
	if err := c.install.ReloadHubs(changed); err != nil {
		return err
	}
	if err := render.WriteCores(l, s); err != nil {
		return err
	}
	rewire, err := render.WriteWan(l, s)
	if err != nil {
		return err
	}
	if rewire {
		if err := s.Processes["wan"].Stop(ctx, time.Second); err != nil {
			return fmt.Errorf("stop the forwarder for its new configuration: %w", err)
		}
	}
	if s.Spec.Runtime == Containerd {
		if err := c.writeEdges(ctx); err != nil {
			return err
		}
	}
	return render.WriteEnv(l, s)
}

// writeEdges makes the gateways' namespaces and cgroups. Without its holder a gateway's mount namespace cannot be entered, and
// without its link the gateway has no network. In both cases its remaining processes are killed, and start again in new namespaces.
func (c *Cluster) writeEdges(ctx context.Context) error {
	edges := folder.Names("edge", c.f.State.Spec.Edges)
	for _, e := range edges {
		if !c.f.State.Processes[folder.HolderName(e)].Alive() || !c.f.Network().Intact(ctx, e) {
			if err := cgroups.Kill(ctx, c.f.Layout.Gateway(e).Cgroup); err != nil {
				return err
			}
		}
		if err := cgroups.Make(c.f.Layout.Gateway(e).Cgroup); err != nil {
			return err
		}
	}
	if !c.f.Network().WanExists() {
		if err := c.f.State.Processes["wan"].Stop(ctx, time.Second); err != nil {
			return fmt.Errorf("stop the forwarder that listens in a lost namespace: %w", err)
		}
	}
	return c.f.Network().Up(ctx, edges)
}
