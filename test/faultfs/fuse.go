package faultfs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// FS is a mounted file system.
type FS struct {
	// Dir is the mount point.
	Dir    string
	tb     testing.TB // nil if it was mounted with MountAt
	disk   *disk
	server *fuse.Server
}

// Mount mounts an empty file system until the test ends. Where a mount is not possible (another system than Linux, or not root), it skips
// the test with a message; with REQUIRE=root in the environment it fails the test.
func Mount(tb testing.TB) *FS {
	tb.Helper()
	f, err := MountAt(tb.TempDir(), "")
	if err != nil {
		if os.Getenv("REQUIRE") != "" && runtime.GOOS == "linux" && os.Getuid() == 0 {
			tb.Fatal(err)
		}
		tb.Skip(err)
	}
	f.tb = tb
	tb.Cleanup(func() {
		if err := f.Unmount(); err != nil {
			tb.Error(err)
		}
	})
	return f
}

// MountAt mounts a file system on a folder. If from, another folder, is given, the file system starts with its content, all of it on the
// medium. The caller unmounts it.
func MountAt(dir, from string) (*FS, error) {
	f := &FS{Dir: dir, disk: &disk{root: newFolder()}}
	root := &dirNode{disk: f.disk, durable: f.disk.root}
	var err error
	f.server, err = fs.Mount(dir, root, &fs.Options{MountOptions: fuse.MountOptions{
		DirectMountStrict: true, FsName: "powercut", Name: "powercut", MaxWrite: 1 << 20,
	}})
	if err != nil {
		return nil, fmt.Errorf("cannot mount a FUSE file system (needs root and /dev/fuse): %w", err)
	}
	if from == "" {
		return f, nil
	}
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		return nil, errors.Join(fmt.Errorf("fill the file system: %w", err), f.Unmount())
	}
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.disk.commitJournal()
	f.disk.root.sync()
	return f, nil
}

// unmountTimeout is how long a process that was just killed may still hold its files.
const unmountTimeout = 10 * time.Second

// Unmount unmounts the file system. No live process may have a file of it open.
func (f *FS) Unmount() error {
	limit := time.After(unmountTimeout)
	for {
		err := f.server.Unmount()
		if err == nil {
			f.server.Wait()
			return nil
		}
		select {
		case <-limit:
			return fmt.Errorf("unmount: %w", err)
		case <-time.After(50 * time.Millisecond): // there is no event for the closing of the last file
		}
	}
}

// CutPower cuts the power: it refuses every change and sync from now on, so that no caller can be told that a lost byte is on disk, and
// writes the content of the medium into a folder. seed is as for Image.
func (f *FS) CutPower(to string, seed uint64) error {
	f.disk.mu.Lock()
	f.disk.poweredOff = true
	f.disk.mu.Unlock()
	return f.disk.writeImage(to, seededRand(seed))
}

// seededRand returns the random source of a seed, nil for 0.
func seededRand(seed uint64) *rand.Rand {
	if seed == 0 {
		return nil
	}
	return rand.New(rand.NewPCG(seed, seed))
}

// Image writes the content that a power cut at this moment leaves into a new folder of the test, and returns the folder. Writers need not
// stop: the image does not hold writes confirmed after this moment. seed decides which unsynced bytes it holds too; 0: none.
func (f *FS) Image(seed uint64) string {
	f.tb.Helper()
	to := f.tb.TempDir()
	if err := f.disk.writeImage(to, seededRand(seed)); err != nil {
		f.tb.Fatal(err)
	}
	return to
}

// Syncs counts the syncs of files and folders.
func (f *FS) Syncs() int {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return f.disk.syncs
}

type dirNode struct {
	fs.Inode
	disk    *disk
	durable *folder
}

type fileNode struct {
	fs.Inode
	disk *disk
	file *file
}

// openHandle is an open file; sync says that each write is synced.
type openHandle struct{ sync bool }

const (
	folderMode = fuse.S_IFDIR | 0o755
	fileMode   = fuse.S_IFREG | 0o644
)

func newOpenHandle(flags uint32) *openHandle {
	return &openHandle{sync: flags&(syscall.O_SYNC|syscall.O_DSYNC) != 0}
}

// visibleChild returns a child that programs see.
func (d *dirNode) visibleChild(name string) fs.InodeEmbedder {
	if c := d.GetChild(name); c != nil {
		return c.Operations()
	}
	return nil
}

func (d *dirNode) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = folderMode
	return 0
}

// Statfs reports free space.
func (d *dirNode) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	const blocks = 1 << 20
	out.Bsize, out.Frsize, out.NameLen = pageSize, pageSize, 255
	out.Blocks, out.Bfree, out.Bavail = blocks, blocks, blocks
	return 0
}

func (d *dirNode) Mkdir(ctx context.Context, name string, _ uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	d.disk.mu.Lock()
	defer d.disk.mu.Unlock()
	if d.disk.poweredOff {
		return nil, syscall.EIO
	}
	n := &dirNode{disk: d.disk, durable: newFolder()}
	d.disk.appendJournal(func() { d.durable.folders[name] = n.durable })
	out.Mode = folderMode
	return d.NewPersistentInode(ctx, n, fs.StableAttr{Mode: fuse.S_IFDIR}), 0
}

func (d *dirNode) Create(ctx context.Context, name string, flags, _ uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	d.disk.mu.Lock()
	defer d.disk.mu.Unlock()
	if d.disk.poweredOff {
		return nil, nil, 0, syscall.EIO
	}
	n := &fileNode{disk: d.disk, file: &file{}}
	d.disk.appendJournal(func() { d.durable.files[name] = n.file })
	out.Mode = fileMode
	return d.NewPersistentInode(ctx, n, fs.StableAttr{Mode: fuse.S_IFREG}), newOpenHandle(flags), 0, 0
}

func (d *dirNode) Unlink(_ context.Context, name string) syscall.Errno {
	d.disk.mu.Lock()
	defer d.disk.mu.Unlock()
	if d.disk.poweredOff {
		return syscall.EIO
	}
	d.disk.appendJournal(func() { delete(d.durable.files, name) })
	return 0
}

func (d *dirNode) Rmdir(_ context.Context, name string) syscall.Errno {
	if c := d.GetChild(name); c != nil && len(c.Children()) > 0 {
		return syscall.ENOTEMPTY
	}
	d.disk.mu.Lock()
	defer d.disk.mu.Unlock()
	if d.disk.poweredOff {
		return syscall.EIO
	}
	d.disk.appendJournal(func() { delete(d.durable.folders, name) })
	return 0
}

func (d *dirNode) Rename(_ context.Context, name string, to fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	target, ok := to.(*dirNode)
	if !ok || flags != 0 {
		return syscall.EINVAL
	}
	d.disk.mu.Lock()
	defer d.disk.mu.Unlock()
	if d.disk.poweredOff {
		return syscall.EIO
	}
	switch c := d.visibleChild(name).(type) {
	case *fileNode:
		d.disk.appendJournal(func() {
			delete(d.durable.files, name)
			target.durable.files[newName] = c.file
		})
	case *dirNode:
		d.disk.appendJournal(func() {
			delete(d.durable.folders, name)
			target.durable.folders[newName] = c.durable
		})
	default:
		return syscall.ENOENT
	}
	return 0
}

func (d *dirNode) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	d.disk.mu.Lock()
	defer d.disk.mu.Unlock()
	if d.disk.poweredOff {
		return syscall.EIO
	}
	d.disk.commitJournal()
	return 0
}

func (n *fileNode) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return newOpenHandle(flags), 0, 0
}

func (n *fileNode) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	out.Mode, out.Size = fileMode, uint64(len(n.file.visible))
	return 0
}

func (n *fileNode) Setattr(_ context.Context, _ fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	if n.disk.poweredOff {
		return syscall.EIO
	}
	if size, ok := in.GetSize(); ok {
		n.file.resize(int(size)) //nolint:gosec // a test's file
	}
	out.Mode, out.Size = fileMode, uint64(len(n.file.visible))
	return 0
}

func (n *fileNode) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	size := int64(len(n.file.visible))
	off = min(off, size)
	return fuse.ReadResultData(dest[:copy(dest, n.file.visible[off:])]), 0
}

func (n *fileNode) Write(_ context.Context, fh fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	if n.disk.poweredOff {
		return 0, syscall.EIO
	}
	n.file.write(data, int(off))
	if h, ok := fh.(*openHandle); ok && h.sync {
		n.file.sync()
		n.disk.commitJournal()
	}
	return uint32(len(data)), 0 //nolint:gosec // at most MaxWrite
}

func (n *fileNode) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	if n.disk.poweredOff {
		return syscall.EIO
	}
	n.file.sync()
	n.disk.commitJournal()
	return 0
}

func (n *fileNode) Flush(context.Context, fs.FileHandle) syscall.Errno { return 0 }
