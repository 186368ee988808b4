package devcluster

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/daemon"
	"github.com/frond-edge/frond/internal/toolchain"
)

// Options of Up.
type Options struct {
	// Dir is the cluster's folder.
	Dir string
	// Spec is the requested size and kind.
	Spec Spec
	// Programs returns the programs for the merged spec. It is called once, with the folder locked, and may build.
	Programs func(context.Context, Spec) (toolchain.Paths, error)
	// Progress receives progress messages; nil discards them.
	Progress io.Writer
	// Timeout bounds the wait for all components together, without Programs; 0 means 3 min.
	Timeout time.Duration
}

// Cluster is a cluster in a folder. Its methods must not run at the same time.
type Cluster struct {
	layout   clusterLayout
	state    clusterState
	progress io.Writer
	began    time.Time
}

// Open returns the cluster in a folder, running or not, or ErrNoCluster. talk receives progress messages and may be nil.
func Open(dir string, talk io.Writer) (*Cluster, error) {
	c, err := newCluster(dir, talk)
	if err != nil {
		return nil, err
	}
	if c.state, err = loadState(c.layout.path("state.json")); err != nil {
		return nil, fmt.Errorf("%s: %w", c.layout.dir, err)
	}
	return c, nil
}

func newCluster(dir string, talk io.Writer) (*Cluster, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find folder: %w", err)
	}
	if talk == nil {
		talk = io.Discard
	}
	return &Cluster{layout: newLayout(abs), progress: talk, began: time.Now()}, nil
}

// Up brings a cluster to the requested size and starts each component that does not run, then waits until all are ready.
// It is idempotent.
func Up(ctx context.Context, o Options) (*Cluster, error) {
	c, err := newCluster(o.Dir, o.Progress)
	if err != nil {
		return nil, err
	}
	unlock, err := lockFolder(ctx, c.layout.path("lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if c.state, err = loadState(c.layout.path("state.json")); err != nil && !errors.Is(err, ErrNoCluster) {
		return nil, err
	}
	root := os.Geteuid() == 0
	spec, err := mergeSpec(c.state.Spec, o.Spec, root)
	if err != nil {
		return nil, err
	}
	if err := runPreflight(c.layout.dir, spec); err != nil {
		return nil, err
	}
	programs, err := o.Programs(ctx, spec)
	if err != nil {
		return nil, err
	}
	c.began = time.Now() // builds do not count as start time
	timeout := o.Timeout
	if timeout == 0 {
		timeout = 3 * time.Minute
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("gave up after %s", timeout))
	defer cancel()
	c.state.Spec, c.state.Programs = spec, programs
	return c, c.bringUp(ctx)
}

func (c *Cluster) bringUp(ctx context.Context) error {
	if c.state.Processes == nil {
		c.state.Processes = map[string]daemon.Identity{}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(c.layout.dir)) // never fails
	var err error
	if c.state.Ports, err = choosePorts(c.state.Ports, portNames(c.state.Spec), h.Sum32(), portFree); err != nil {
		return err
	}
	if err := c.saveState(); err != nil {
		return err
	}
	if err := c.writeFiles(ctx); err != nil {
		return err
	}
	parts := c.allComponents()
	if err := c.checkPortsFree(parts...); err != nil {
		return err
	}
	var stage []component
	for i, p := range parts {
		stage = append(stage, p)
		if p.stage == stageEdge && (i == 0 || parts[i-1].stage != stageEdge) {
			if err := c.writeTokens(ctx); err != nil {
				return err
			}
		}
		if i+1 == len(parts) || parts[i+1].stage != p.stage {
			if err := c.startStage(ctx, stage); err != nil {
				return err
			}
			stage = nil
		}
	}
	if err := c.awaitServices(ctx); err != nil {
		return err
	}
	c.logProgress("all %d parts are ready", len(parts))
	return nil
}

// startStage starts the stopped components of one stage and waits until all of the stage are ready.
func (c *Cluster) startStage(ctx context.Context, stage []component) error {
	started := map[string]bool{}
	for _, p := range stage {
		if c.state.Processes[p.name].Alive() {
			continue
		}
		if err := c.startComponent(p); err != nil {
			return err
		}
		started[p.name] = true
	}
	for _, p := range stage {
		if err := c.awaitReady(ctx, p); err != nil {
			return err
		}
		if started[p.name] {
			c.logProgress("%s is ready (pid %d)", p.name, c.state.Processes[p.name].PID)
		}
	}
	return nil
}

// checkPortsFree returns an error that names every port that was free when it was chosen and that another process holds now.
func (c *Cluster) checkPortsFree(parts ...component) error {
	var errs []error
	for _, p := range parts {
		if c.state.Processes[p.name].Alive() {
			continue
		}
		for _, name := range p.ports {
			if port := c.state.Ports[name]; !portFree(port) {
				errs = append(errs, fmt.Errorf("%s: port %d is in use by another process: end it (ss -ltnp 'sport = :%d' names it), "+
					"or run frond dev down and up again to choose other ports", name, port, port))
			}
		}
	}
	return errors.Join(errs...)
}

// writeFiles makes folders, files, namespaces and cgroups, and makes running components reload changed files.
func (c *Cluster) writeFiles(ctx context.Context) error {
	l, s := c.layout, c.state
	if err := os.MkdirAll(l.run, 0o755); err != nil {
		return fmt.Errorf("make run folder: %w", err)
	}
	if err := linkPrograms(l, s); err != nil {
		return err
	}
	if err := writeControlPlane(l, s.Ports); err != nil {
		return err
	}
	if err := writeMetricsServer(l, s); err != nil {
		return err
	}
	files, renewed, err := makeMaterial(l, s)
	if err != nil {
		return err
	}
	changed, err := writeHub(l, s, files)
	if err != nil {
		return err
	}
	if renewed {
		changed = numberedNames("hub", s.Spec.Hubs)
	}
	if err := c.reloadHubs(changed); err != nil {
		return err
	}
	if err := writeCores(l, s); err != nil {
		return err
	}
	rewire, err := writeWan(l, s)
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
	return writeEnv(l, s)
}

// writeEdges makes the gateways' namespaces and cgroups. Without its holder a gateway's mount namespace cannot be entered, and
// without its link the gateway has no network. In both cases its remaining processes are killed, and start again in new namespaces.
func (c *Cluster) writeEdges(ctx context.Context) error {
	edges := numberedNames("edge", c.state.Spec.Edges)
	for _, e := range edges {
		if !c.state.Processes[c.holderName(e)].Alive() || !c.wanNetwork().Intact(ctx, e) {
			if err := c.layout.edgeFiles(e).killCgroups(ctx); err != nil {
				return err
			}
		}
		if err := c.layout.edgeFiles(e).makeCgroups(); err != nil {
			return err
		}
	}
	if !c.wanNetwork().WanExists() {
		if err := c.state.Processes["wan"].Stop(ctx, time.Second); err != nil {
			return fmt.Errorf("stop the forwarder that listens in a lost namespace: %w", err)
		}
	}
	return c.wanNetwork().Up(ctx, edges)
}

func (c *Cluster) saveState() error { return c.state.save(c.layout.path("state.json")) }

// logProgress prints a progress message with the time since the start.
func (c *Cluster) logProgress(format string, args ...any) {
	_, _ = fmt.Fprintf(c.progress, "%6.1fs  %s\n", time.Since(c.began).Seconds(), fmt.Sprintf(format, args...))
}
