package devcluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// This file has the actions of the fault suite in addition to Kill, Start, Cut and Heal. Faults of a link's quality need a forwarder
// that sees each gateway separately: the hollow runtime.

// Launch starts a component that does not run and does not wait until it is ready. env is added to its environment, for this
// run only.
func (c *Cluster) Launch(ctx context.Context, name string, env ...string) error {
	return c.withLockedState(ctx, func() error {
		p, err := c.findComponent(name)
		if err != nil {
			return err
		}
		if c.state.Processes[p.name].Alive() {
			return fmt.Errorf("%s runs already", name)
		}
		if err := c.awaitPorts(ctx, p); err != nil {
			return err
		}
		p.command.Env = append(p.command.Env, env...)
		return c.startComponent(p)
	})
}

// Ready returns an error unless a component is ready now.
func (c *Cluster) Ready(ctx context.Context, name string) error {
	p, err := c.findComponent(name)
	if err != nil {
		return err
	}
	if !c.state.Processes[p.name].Alive() {
		return fmt.Errorf("%s: %w: it does not run", name, errNotReady)
	}
	if why := readinessProblem(ctx, p); why != "" {
		return fmt.Errorf("%s: %w: %s", name, errNotReady, why)
	}
	return nil
}

// Components names all components.
func (c *Cluster) Components() []string {
	var names []string
	for _, p := range c.allComponents() {
		names = append(names, p.name)
	}
	return names
}

// Pause stops a component with SIGSTOP: its connections stay open and get no answer. Resume continues it.
func (c *Cluster) Pause(ctx context.Context, name string) error {
	return c.signalProcess(ctx, name, syscall.SIGSTOP)
}

// Resume undoes Pause. A component that is not paused is no error.
func (c *Cluster) Resume(ctx context.Context, name string) error {
	return c.signalProcess(ctx, name, syscall.SIGCONT)
}

func (c *Cluster) signalProcess(ctx context.Context, name string, sig syscall.Signal) error {
	return c.withLockedState(ctx, func() error {
		p, err := c.findComponent(name)
		if err != nil {
			return err
		}
		return c.state.Processes[p.name].Signal(sig)
	})
}

// CutOneWay drops the traffic from the gateway to the cloud with up, else the traffic to the gateway. Heal undoes it.
func (c *Cluster) CutOneWay(ctx context.Context, edge string, up bool) error {
	only := "down"
	if up {
		only = "up"
	}
	return c.postLinkCommand(ctx, edge, "/links/"+edge+"/cut?only="+only)
}

// Reset breaks a gateway's open connections; new ones are not affected.
func (c *Cluster) Reset(ctx context.Context, edge string) error {
	return c.postLinkCommand(ctx, edge, "/links/"+edge+"/reset")
}

// Shape degrades a gateway's link; the zero shape restores it.
func (c *Cluster) Shape(ctx context.Context, edge string, shape wan.Shape) error {
	return c.postLinkCommand(ctx, edge, wan.ShapePath(edge, shape))
}

func (c *Cluster) postLinkCommand(ctx context.Context, edge, path string) error {
	return c.withLockedState(ctx, func() error {
		if err := c.mustBeEdge(edge); err != nil {
			return err
		}
		if c.state.Spec.Runtime != Hollow {
			return errors.New("this fault needs the hollow runtime, whose gateways each have their own way through the forwarder")
		}
		return c.requestSocket(ctx, c.layout.wanSocket(), http.MethodPost, path, nil)
	})
}

// Wipe empties the disk of a gateway that does not run, as if the disk had been replaced. Its name and credentials stay.
func (c *Cluster) Wipe(ctx context.Context, edge string) error {
	return c.withLockedState(ctx, func() error {
		if err := c.mustBeStopped(edge); err != nil {
			return err
		}
		dir := c.layout.edgeFiles(edge).storeDir() // the folder itself may be a mount
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("wipe %s: %w", edge, err)
		}
		for _, e := range entries {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("wipe %s: %w", edge, err)
			}
		}
		return nil
	})
}

// mustBeStopped returns an error if the gateway runs.
func (c *Cluster) mustBeStopped(edge string) error {
	if err := c.mustBeEdge(edge); err != nil {
		return err
	}
	if c.state.Processes[edge].Alive() {
		return fmt.Errorf("%s runs: kill it first", edge)
	}
	return nil
}

// MountSmallDisk gives a gateway that does not run a new, empty disk of size bytes, in memory. It needs root.
func (c *Cluster) MountSmallDisk(ctx context.Context, edge string, size int64) error {
	return c.withLockedState(ctx, func() error {
		if err := c.mustBeStopped(edge); err != nil {
			return err
		}
		c.releaseDisk(edge)
		if err := unix.Mount("frond", c.layout.edgeFiles(edge).storeDir(), "tmpfs", 0, "mode=0755,size="+strconv.FormatInt(size, 10)); err != nil {
			return fmt.Errorf("give %s a small disk: %w", edge, err)
		}
		return nil
	})
}

// ballast is the name of the file that fills a small disk.
const ballast = "ballast"

// FillDisk fills a small disk to its last byte. FreeDisk removes the ballast.
func (c *Cluster) FillDisk(edge string) error {
	if err := c.mustBeEdge(edge); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(c.layout.edgeFiles(edge).storeDir(), ballast))
	if err != nil {
		return fmt.Errorf("fill the disk of %s: %w", edge, err)
	}
	for block := make([]byte, 64<<10); len(block) > 0; {
		if _, err = f.Write(block); err != nil {
			block = block[:len(block)/2] // the last bytes too
		}
	}
	if errors.Is(err, unix.ENOSPC) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// FreeDisk undoes FillDisk. A disk that is not filled is no error.
func (c *Cluster) FreeDisk(edge string) error {
	err := os.Remove(filepath.Join(c.layout.edgeFiles(edge).storeDir(), ballast))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("free the disk of %s: %w", edge, err)
	}
	return nil
}

// releaseDisk unmounts a gateway's small disk, if it has one; its content is lost.
func (c *Cluster) releaseDisk(edge string) {
	for _, dir := range []string{c.StreamsDir(edge), c.layout.edgeFiles(edge).storeDir()} {
		_ = unix.Unmount(dir, unix.MNT_DETACH) // fails if nothing is mounted
	}
}

// StreamsDir is the folder of a gateway's store and outbox. A test may mount a file system there while the gateway is stopped.
func (c *Cluster) StreamsDir(edge string) string { return c.layout.edgeFiles(edge).streamsDir() }

// History returns the file of a gateway's history; see Spec.History.
func (c *Cluster) History(edge string) string { return c.layout.edgeFiles(edge).historyFile() }
