package devcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/bootstrap"
	"github.com/frond-edge/frond/internal/devcluster/devices"
	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/gateway"
	"github.com/frond-edge/frond/internal/devcluster/process"
	"github.com/frond-edge/frond/internal/toolchain"
)

// Spec is the size and kind of a cluster.
type Spec = folder.Spec

// Runtime is how gateways run pods.
type Runtime = folder.Runtime

// The runtimes. Containerd needs root.
const (
	Containerd = folder.Containerd
	Hollow     = folder.Hollow
)

type (
	// StoreContents is a gateway's store, as Cluster.Store lists it.
	StoreContents = gateway.StoreContents
	// StoredObject is one object of it.
	StoredObject = gateway.StoredObject
)

var (
	// ErrNoCluster says that there is no cluster in a folder.
	ErrNoCluster = folder.ErrNoCluster
	// ErrMissingNft names the program that kube-proxy lacks on this machine.
	ErrMissingNft = folder.ErrMissingNft
	// ErrNotInStore reports that a gateway's store does not hold an object.
	ErrNotInStore = gateway.ErrNotInStore
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

// Cluster is a cluster in a folder. Its methods, and those of its parts, must not run at the same time.
type Cluster struct {
	Addresses
	Processes
	*gateway.Links
	*gateway.Disks
	*gateway.Clones
	*gateway.API
	*devices.Devices

	f       *folder.Folder
	install *bootstrap.Installer
}

// Open returns the cluster in a folder, running or not, or ErrNoCluster. talk receives progress messages and may be nil.
func Open(dir string, talk io.Writer) (*Cluster, error) {
	f, err := folder.New(dir, talk)
	if err != nil {
		return nil, err
	}
	c := newCluster(f)
	if err := f.Load(); err != nil {
		return nil, fmt.Errorf("%s: %w", c.f.Layout.Dir, err)
	}
	return c, nil
}

func newCluster(f *folder.Folder) *Cluster {
	c := &Cluster{
		Addresses: Addresses{f: f},
		Links:     gateway.NewLinks(f), Disks: gateway.NewDisks(f), Clones: gateway.NewClones(f), API: gateway.NewAPI(f),
		f: f, install: bootstrap.NewInstaller(f),
	}
	c.Devices = devices.New(f, c.API)
	c.Processes = Processes{
		f: f, supervisor: process.NewSupervisor(f),
		catalog: &catalog{f: f, install: c.install, links: c.Links, api: c.API},
	}
	return c
}

// Up brings a cluster to the requested size and starts each component that does not run, then waits until all are ready.
// It is idempotent.
func Up(ctx context.Context, o Options) (*Cluster, error) {
	f, err := folder.New(o.Dir, o.Progress)
	if err != nil {
		return nil, err
	}
	c := newCluster(f)
	unlock, err := f.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := f.Load(); err != nil && !errors.Is(err, ErrNoCluster) {
		return nil, err
	}
	root := os.Geteuid() == 0
	spec, err := folder.MergeSpec(c.f.State.Spec, o.Spec, root)
	if err != nil {
		return nil, err
	}
	if err := runPreflight(c.f.Layout.Dir, spec); err != nil {
		return nil, err
	}
	programs, err := o.Programs(ctx, spec)
	if err != nil {
		return nil, err
	}
	f.StartClock() // builds do not count as start time
	timeout := o.Timeout
	if timeout == 0 {
		timeout = 3 * time.Minute
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("gave up after %s", timeout))
	defer cancel()
	if err := c.stopEdgesWithoutBroker(ctx, spec); err != nil {
		return c, err
	}
	c.f.State.Spec, c.f.State.Programs = spec, programs
	return c, c.bringUp(ctx)
}

// Down stops and removes everything: processes, pods, mounts, namespaces, cgroups and files. With keepLogs the logs
// stay. It continues after errors and may be repeated.
func (c *Cluster) Down(ctx context.Context, keepLogs bool) error {
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	t := teardown{f: c.f, catalog: c.catalog, clones: c.Clones, disks: c.Disks, devices: c.Devices}
	return c.f.Update(ctx, func() error {
		errs := t.stopAll(ctx)
		if c.f.State.Spec.Runtime == Containerd {
			errs = append(errs, t.removeGateways(ctx)...)
		}
		if len(errs) > 0 {
			return errors.Join(errs...) // state.json stays, so that Down can be repeated
		}
		if err := t.removeFiles(keepLogs); err != nil {
			return err
		}
		c.f.Logf("all is gone")
		return nil
	})
}

// Reboot power-cycles a gateway. It kills all its processes at once, containers included, and removes
// its mounts, sockets, cgroups, network and everything below its run folder. Then it starts the runtime and edgecore.
// It returns when the containers of all pods that ran before run again, as new ones.
func (c *Cluster) Reboot(ctx context.Context, edge string, o Reboot) (RebootResult, error) {
	r := rebooter{f: c.f, links: c.Links, api: c.API, catalog: c.catalog, supervisor: c.supervisor}
	return r.run(ctx, edge, o)
}

// Status checks every component. It changes nothing.
func (c *Cluster) Status(ctx context.Context) Status { return readStatus(ctx, c) }

// Kubectl runs kubectl as the cluster's admin and returns its output.
func (c *Cluster) Kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	return bootstrap.Kubectl(ctx, c.f.Layout, stdin, args...)
}

// Sync copies the results of frond init and frond ca rotate since Up from Kubernetes to the hub's servers and the cloudcores. The
// cloudcores inform the gateways.
func (c *Cluster) Sync(ctx context.Context) error {
	return c.f.Update(ctx, func() error { return c.install.Apply(ctx) })
}
