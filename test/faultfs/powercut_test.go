package faultfs_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/frond-edge/frond/test/faultfs"
	"github.com/frond-edge/frond/test/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(kit.AwaitGoroutines(m)) }

// writeFile writes a file with or without a sync, as programs do.
func writeFile(t *testing.T, path, text string, flags int, sync bool) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|flags, 0o600)
	kit.Must(t, err)
	_, err = f.WriteString(text)
	kit.Must(t, err)
	if sync {
		kit.Must(t, f.Sync())
	}
	kit.Must(t, f.Close())
}

func requireContent(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s holds %q, want %q", filepath.Base(path), got, want)
	}
}

func TestImage_HoldsOnlySyncedBytes(t *testing.T) {
	m := faultfs.Mount(t)
	at := func(name string) string { return filepath.Join(m.Dir, name) }
	kit.Must(t, os.Mkdir(at("d"), 0o700))
	writeFile(t, at("d/synced"), "kept", 0, true)
	writeFile(t, at("d/opened-with-sync"), "kept", os.O_SYNC, false)
	writeFile(t, at("d/unsynced"), "lost", 0, false)
	writeFile(t, at("d/synced"), " and lost", os.O_APPEND, false)
	kit.Must(t, os.Rename(at("d/opened-with-sync"), at("d/renamed"))) // not synced
	requireContent(t, at("d/unsynced"), "lost")
	requireContent(t, at("d/synced"), "kept and lost")

	image := m.Image(0)
	requireContent(t, filepath.Join(image, "d/synced"), "kept")
	requireContent(t, filepath.Join(image, "d/opened-with-sync"), "kept")
	requireContent(t, filepath.Join(image, "d/renamed"), "")
	requireContent(t, filepath.Join(image, "d/unsynced"), "")

	// A sync of the folder makes the names durable, not the bytes.
	dir, err := os.Open(at("d"))
	kit.Must(t, err)
	kit.Must(t, errors.Join(dir.Sync(), dir.Close()))
	writeFile(t, at("d/synced"), "x", os.O_TRUNC, false)
	image = m.Image(0)
	requireContent(t, filepath.Join(image, "d/renamed"), "kept")
	requireContent(t, filepath.Join(image, "d/opened-with-sync"), "")
	requireContent(t, filepath.Join(image, "d/synced"), "kept")

	kit.Must(t, os.RemoveAll(at("d")))
	requireContent(t, filepath.Join(m.Image(0), "d/renamed"), "kept")
	if entries, err := os.ReadDir(m.Dir); err != nil || len(entries) != 0 {
		t.Errorf("%d entries left, %v", len(entries), err)
	}
}

// A seed writes back some of the unsynced bytes, and changes none of the synced ones.
func TestImage_SeedKeepsSomeUnsyncedBytes(t *testing.T) {
	m := faultfs.Mount(t)
	path := filepath.Join(m.Dir, "f")
	writeFile(t, path, "old", 0, true)
	writeFile(t, path, "new", 0, false)
	seen := map[string]int{}
	for seed := range uint64(40) {
		data, err := os.ReadFile(filepath.Join(m.Image(seed+1), "f"))
		kit.Must(t, err)
		seen[string(data)]++
	}
	if seen["old"] == 0 || seen["new"] == 0 || len(seen) != 2 {
		t.Errorf("after cuts: %v, want old and new", seen)
	}
}

// A disk without power accepts nothing any more, and the next one starts with the content of the medium.
func TestCutPower_RefusesWritesAndImageBoots(t *testing.T) {
	dir, image := t.TempDir(), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	m, err := faultfs.MountAt(dir, "")
	if err != nil {
		t.Skip(err)
	}
	kit.Must(t, os.Mkdir(at("d"), 0o700))
	writeFile(t, at("d/f"), "kept", 0, true)
	writeFile(t, at("d/f"), "lost", 0, false)
	kit.Must(t, m.CutPower(image, 0))
	if err := os.WriteFile(at("d/late"), []byte("late"), 0o600); err == nil {
		t.Error("written without power")
	}
	requireContent(t, at("d/f"), "lost")
	kit.Must(t, m.Unmount())

	m, err = faultfs.MountAt(dir, image)
	kit.Must(t, err)
	requireContent(t, at("d/f"), "kept")
	requireContent(t, at("d/late"), "")
	writeFile(t, at("d/f"), "lost", 0, false)
	requireContent(t, filepath.Join(cutToImage(t, m), "d/f"), "kept")
	kit.Must(t, m.Unmount())
}

// cutToImage cuts the power without any unsynced bytes.
func cutToImage(t *testing.T, m *faultfs.FS) string {
	t.Helper()
	to := t.TempDir()
	kit.Must(t, m.CutPower(to, 0))
	return to
}
