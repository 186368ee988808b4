package suite_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/history"
	"github.com/frond-edge/frond/test/faultfs"
	"github.com/frond-edge/frond/test/faults"
)

// Faults of disks. The last gateway has a small disk, and the last but one a disk that tracks synced bytes, where root may
// mount them; both stay for the whole run.

// smallDisk is many times what a gateway stores here, and still fills quickly.
const smallDisk = 192 << 20

// prepareNode gives a node its history checker, where there are histories, and its disk.
func (r *testCluster) prepareNode(ctx context.Context, node string) error {
	if !r.cluster.Spec().History {
		return nil
	}
	r.checkers[node] = faults.NewHistoryChecker(node, &r.deletions)
	i := slices.Index(nodes, node)
	special := os.Geteuid() == 0 && i >= len(nodes)-2
	if os.Getenv("FROND_FAULTS_DIR") == "" && !special {
		return nil
	}
	if err := r.cluster.Kill(ctx, node); err != nil {
		return err
	}
	if special {
		if err := r.provideDisk(ctx, node, i == len(nodes)-1); err != nil {
			if os.Getenv("REQUIRE") != "" { // as powercut.Mount fails then
				return fmt.Errorf("a disk for %s: %w", node, err)
			}
			fmt.Fprintf(os.Stderr, "rounds without a full disk or a power cut of %s: %v\n", node, err)
		}
	}
	// Deletions of earlier runs are unknown; the restart begins a new history.
	_, end, err := history.Read(r.cluster.History(node), 0)
	if err != nil {
		return err
	}
	r.checkedOffset[node] = end
	return r.cluster.Start(ctx, node)
}

// provideDisk gives a stopped gateway a small disk, or one whose power can be cut.
func (r *testCluster) provideDisk(ctx context.Context, node string, small bool) error {
	if small {
		if err := r.cluster.MountSmallDisk(ctx, node, smallDisk); err != nil {
			return err
		}
		r.smallDisks = append(r.smallDisks, node)
		return nil
	}
	if err := r.cluster.Wipe(ctx, node); err != nil {
		return err
	}
	return r.mountPowercutDisk(node, "")
}

// mountPowercutDisk mounts a gateway's disk that tracks synced bytes, with the content of a folder.
func (r *testCluster) mountPowercutDisk(node, from string) error {
	dir := r.cluster.StreamsDir(node)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	disk, err := faultfs.MountAt(dir, from)
	if err != nil {
		return err
	}
	r.powercutDisks[node] = disk
	return nil
}

// unmountDisks unmounts such disks at the end of a run.
func (r *testCluster) unmountDisks(ctx context.Context) error {
	var errs []error
	for node, disk := range r.powercutDisks {
		if r.cluster.PID(node) != 0 {
			errs = append(errs, r.cluster.Kill(ctx, node))
		}
		errs = append(errs, disk.Unmount())
	}
	return errors.Join(errs...)
}

// wipeDisk empties the disk of a stopped gateway, and allows its checker a new store.
func (r *testCluster) wipeDisk(ctx context.Context, node string) error {
	return r.withCluster(func(c *devcluster.Cluster) error {
		if disk := r.powercutDisks[node]; disk != nil {
			if err := disk.Unmount(); err != nil {
				return err
			}
		}
		r.checkers[node].AllowNewStore()
		if err := c.Wipe(ctx, node); err != nil {
			return err
		}
		if r.powercutDisks[node] != nil {
			return r.mountPowercutDisk(node, "")
		}
		return nil
	})
}

// powerOff cuts the power of a gateway: its store keeps the synced bytes and an arbitrary part of the others.
func (r *testCluster) powerOff(ctx context.Context, node string) error {
	image, err := os.MkdirTemp("", "fp-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(image) }()
	return r.withCluster(func(c *devcluster.Cluster) error {
		disk := r.powercutDisks[node]
		if err := disk.CutPower(image, rand.Uint64N(4)*rand.Uint64()); err != nil { // one in four keeps no unsynced bytes
			return err
		}
		killed := c.Kill(ctx, node) // it may not have been running
		if err := disk.Unmount(); err != nil {
			return errors.Join(killed, err)
		}
		return errors.Join(killed, r.mountPowercutDisk(node, image))
	})
}

// startClone restarts a gateway and runs a second agent on a copy of its disk.
func (r *testCluster) startClone(ctx context.Context, node string) error {
	return r.withCluster(func(c *devcluster.Cluster) error {
		if err := c.Kill(ctx, node); err != nil {
			return err
		}
		if err := c.CopyDisk(ctx, node); err != nil {
			return err
		}
		if err := os.Remove(c.CloneHistory(node)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return errors.Join(c.Launch(ctx, node), c.LaunchClone(ctx, node))
	})
}

// endClone does what an operator would: it ends the copy, and restarts the gateway, which may be the fenced one. The history of
// the copy is checked like that of any gateway.
func (r *testCluster) endClone(ctx context.Context, node string) error {
	return r.withCluster(func(c *devcluster.Cluster) error {
		if err := c.KillClone(ctx, node); err != nil {
			return err
		}
		lines, _, err := history.Read(c.CloneHistory(node), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // it may have been killed before it had opened its store
			return err
		}
		for _, breach := range faults.NewHistoryChecker(node, &r.deletions).Check(lines) {
			r.breaches = append(r.breaches, "a copy of "+breach)
		}
		return errors.Join(c.Kill(ctx, node), c.Launch(ctx, node))
	})
}
