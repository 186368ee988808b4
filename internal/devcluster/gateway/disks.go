package gateway

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/internal/devcluster/folder"
)

// Disks empties, fills and replaces the disks of gateways.
type Disks struct{ f *folder.Folder }

// NewDisks returns the disks of a cluster's gateways.
func NewDisks(f *folder.Folder) *Disks { return &Disks{f: f} }

// Wipe empties the disk of a gateway that does not run, as if the disk had been replaced. Its name and credentials stay.
func (d *Disks) Wipe(ctx context.Context, edge string) error {
	return d.f.Update(ctx, func() error {
		if err := d.f.CheckStopped(edge); err != nil {
			return err
		}
		dir := d.f.Layout.Gateway(edge).StoreDir() // the folder itself may be a mount
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

// MountSmallDisk gives a gateway that does not run a new, empty disk of size bytes, in memory. It needs root.
func (d *Disks) MountSmallDisk(ctx context.Context, edge string, size int64) error {
	return d.f.Update(ctx, func() error {
		if err := d.f.CheckStopped(edge); err != nil {
			return err
		}
		d.UnmountDisk(edge)
		if err := unix.Mount("frond", d.f.Layout.Gateway(edge).StoreDir(), "tmpfs", 0, "mode=0755,size="+strconv.FormatInt(size, 10)); err != nil {
			return fmt.Errorf("give %s a small disk: %w", edge, err)
		}
		return nil
	})
}

// ballast is the name of the file that fills a small disk.
const ballast = "ballast"

// FillDisk fills a small disk to its last byte. FreeDisk removes the ballast.
func (d *Disks) FillDisk(edge string) error {
	if err := d.f.CheckGateway(edge); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(d.f.Layout.Gateway(edge).StoreDir(), ballast))
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
func (d *Disks) FreeDisk(edge string) error {
	err := os.Remove(filepath.Join(d.f.Layout.Gateway(edge).StoreDir(), ballast))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("free the disk of %s: %w", edge, err)
	}
	return nil
}

// UnmountDisk unmounts a gateway's small disk, if it has one; its content is lost.
func (d *Disks) UnmountDisk(edge string) {
	for _, dir := range []string{d.StreamsDir(edge), d.f.Layout.Gateway(edge).StoreDir()} {
		_ = unix.Unmount(dir, unix.MNT_DETACH) // fails if nothing is mounted
	}
}

// StreamsDir is the folder of a gateway's store and outbox. A test may mount a file system there while the gateway is stopped.
func (d *Disks) StreamsDir(edge string) string { return d.f.Layout.Gateway(edge).StreamsDir() }

// History returns the file of a gateway's history; see Spec.History.
func (d *Disks) History(edge string) string { return d.f.Layout.Gateway(edge).HistoryFile() }

// MirrorRegistry makes a gateway's containerd pull the images of a registry from a server at this address, over plain HTTP.
// It takes effect at the next pull. Up leaves the folder of registries empty.
func (d *Disks) MirrorRegistry(edge, registry, address string) error {
	if err := d.f.CheckGateway(edge); err != nil {
		return err
	}
	hosts := fmt.Sprintf("server = \"http://%[1]s\"\n\n[host.\"http://%[1]s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", address)
	return folder.WriteFile(filepath.Join(d.f.Layout.Gateway(edge).RegistryDir(), registry, "hosts.toml"), []byte(hosts), 0o644)
}
