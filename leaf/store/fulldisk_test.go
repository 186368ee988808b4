package store_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/leaf/store"
)

// The disk of an open store fills up, with no reserve: writes fail, reads continue, and no acked write is lost. When there
// is space the same store writes again.
func TestNode_FullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("frond-test", dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Skipf("cannot mount a tmpfs, which needs root: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, 0)) })
	var space func() leaf.DiskSpace
	cfg := store.Config{HighWaterFile: filepath.Join(dir, "store.mark"), SyncTimeout: 2 * time.Second, CheckWritable: func() error {
		if space != nil && space().Failed {
			return errors.New("full")
		}
		return nil
	}}
	n := openNode(t, filepath.Join(dir, "nats"), cfg)
	space = n.leaf.DiskSpace
	must(t, n.Replace(t.Context(), nil, "s1", 0))
	seq, want := uint64(0), map[string]string{}
	write := func() error {
		name, data := fmt.Sprint("o", seq%20), fmt.Sprintf("%d %s", seq+1, strings.Repeat("x", 20_000))
		err := n.Apply(t.Context(), []wire.Message{applyMessage(seq+1, name, "u", data)}, seq+1)
		if err == nil {
			seq, want[name] = seq+1, data
		}
		return err
	}
	for range 40 {
		must(t, write())
	}
	for round := range 2 {
		other := filepath.Join(dir, "somebody-elses")
		fillDisk(t, other)
		deadline := time.Now().Add(time.Minute)
		for err := write(); !errors.Is(err, store.ErrFull); err = write() {
			if time.Now().After(deadline) {
				t.Fatalf("the disk is not full: %v", err)
			}
		}
		for name, data := range want {
			n.wantData(name, data)
		}
		n.wantCursor("s1", seq)
		must(t, os.Remove(other))
		deadline = time.Now().Add(time.Minute)
		for err := write(); err != nil; err = write() {
			if time.Now().After(deadline) {
				t.Fatalf("round %d: with space again: %v", round, err)
			}
			<-time.After(10 * time.Millisecond)
		}
	}
	space = nil
	n = n.restart(cfg, nil)
	for name, data := range want {
		n.wantData(name, data)
	}
	n.wantCursor("s1", seq)
}

func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(t, err)
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else {
			must(t, err)
		}
	}
	must(t, f.Close())
}
