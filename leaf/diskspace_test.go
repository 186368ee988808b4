package leaf_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
)

const mib = 1 << 20

// mountSmallDisk mounts a file system of a few MiB.
func mountSmallDisk(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("frond-test", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", size)); err != nil {
		t.Skipf("cannot mount a tmpfs, which needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// fillDisk takes all space of a disk, like a program that writes without end, and returns the file to remove.
func fillDisk(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "somebody-elses")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for size := mib; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func waitForSpace(t *testing.T, l *leaftest.Leaf, what string, holds func(leaf.DiskSpace) bool) {
	t.Helper()
	kit.Succeeds(t, time.Minute, func() error {
		if space := l.DiskSpace(); !holds(space) {
			return fmt.Errorf("not %s: %+v", what, space)
		}
		return nil
	})
}

// putUntilStored writes until it succeeds; each try has to return in time.
func putUntilStored(t *testing.T, kv jetstream.KeyValue, key string) {
	t.Helper()
	kit.Succeeds(t, time.Minute, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := kv.Put(ctx, key, make([]byte, 10_000))
		return err
	})
}

// Another program fills the whole disk: the reserve shrinks and writes of control state continue. When the space is free again, the
// reserve is restored. The same connection works throughout.
func TestDiskSpace_ReserveGivesWayWhenFull(t *testing.T) {
	dir := mountSmallDisk(t, 48)
	l := leaftest.StartLeaf(t, leaf.Config{Dir: filepath.Join(dir, "nats"), Reserve: 8 * mib})
	js, err := jetstream.New(l.Client())
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "b", Storage: jetstream.FileStorage, History: 1})
	if err != nil {
		t.Fatal(err)
	}
	waitForSpace(t, l, "in order", func(s leaf.DiskSpace) bool { return s.Reserve == 8*mib && !s.Low })
	putUntilStored(t, kv, "before")
	for round := range 2 {
		other := fillDisk(t, dir)
		putUntilStored(t, kv, fmt.Sprint("full-", round))
		waitForSpace(t, l, "low", func(s leaf.DiskSpace) bool { return s.Low && s.Reserve < 8*mib && s.Free > 0 })
		if err := os.Remove(other); err != nil {
			t.Fatal(err)
		}
		waitForSpace(t, l, "in order again", func(s leaf.DiskSpace) bool { return s.Reserve == 8*mib && !s.Low && !s.Failed })
		putUntilStored(t, kv, fmt.Sprint("after-", round))
	}
	for _, key := range []string{"before", "full-0", "after-0", "full-1", "after-1"} {
		if _, err := kv.Get(t.Context(), key); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// The disk is full, the reserve included: writes fail, reads continue, and once there is space again everything works without a restart of
// the process.
func TestDiskSpace_RecoversWithoutReserve(t *testing.T) {
	dir := mountSmallDisk(t, 24)
	l := leaftest.StartLeaf(t, leaf.Config{Dir: filepath.Join(dir, "nats")})
	js, err := jetstream.New(l.Client())
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "b", Storage: jetstream.FileStorage, History: 1})
	if err != nil {
		t.Fatal(err)
	}
	putUntilStored(t, kv, "before")
	other := fillDisk(t, dir)
	for i := range 200 { // until a write fails: the last block has room
		if _, err = kv.Put(t.Context(), fmt.Sprint("k", i), make([]byte, 100_000)); err != nil {
			break
		}
	}
	if err == nil {
		t.Fatal("the disk is not full")
	}
	t.Logf("on a full disk: %v", err)
	waitForSpace(t, l, "failed", func(s leaf.DiskSpace) bool { return s.Failed })
	if _, err := kv.Get(t.Context(), "before"); err != nil {
		t.Errorf("read on a full disk: %v", err)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	putUntilStored(t, kv, "after")
	if _, err := kv.Get(t.Context(), "before"); err != nil {
		t.Errorf("read afterwards: %v", err)
	}
	waitForSpace(t, l, "in order", func(s leaf.DiskSpace) bool { return !s.Failed })
}

// A gateway that boots with a full disk uses the reserve.
func TestDiskSpace_StartOnFullDisk(t *testing.T) {
	dir := mountSmallDisk(t, 48)
	cfg := leaf.Config{Dir: filepath.Join(dir, "nats"), Reserve: 8 * mib}
	l := leaftest.StartLeaf(t, cfg)
	waitForSpace(t, l, "in order", func(s leaf.DiskSpace) bool { return s.Reserve == 8*mib })
	l.Stop()
	fillDisk(t, dir)
	l = leaftest.StartLeaf(t, cfg)
	js, err := jetstream.New(l.Client())
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "b", Storage: jetstream.FileStorage})
	if err != nil {
		t.Fatal(err)
	}
	putUntilStored(t, kv, "key")
	if space := l.DiskSpace(); !space.Low || space.Failed {
		t.Errorf("space %+v, want low", space)
	}
}
