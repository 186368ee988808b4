package powercut_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/frond-edge/frond/internal/powercut"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put writes a file with or without a sync, as programs do.
func put(t *testing.T, path, text string, flags int, sync bool) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|flags, 0o600)
	must(t, err)
	_, err = f.WriteString(text)
	must(t, err)
	if sync {
		must(t, f.Sync())
	}
	must(t, f.Close())
}

func holds(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s holds %q, want %q", filepath.Base(path), got, want)
	}
}

func TestCut(t *testing.T) {
	m := powercut.Mount(t)
	at := func(name string) string { return filepath.Join(m.Dir, name) }
	must(t, os.Mkdir(at("d"), 0o700))
	put(t, at("d/synced"), "kept", 0, true)
	put(t, at("d/opened-with-sync"), "kept", os.O_SYNC, false)
	put(t, at("d/unsynced"), "lost", 0, false)
	put(t, at("d/synced"), " and lost", os.O_APPEND, false)
	must(t, os.Rename(at("d/opened-with-sync"), at("d/renamed"))) // not synced
	holds(t, at("d/unsynced"), "lost")
	holds(t, at("d/synced"), "kept and lost")

	image := m.Image(0)
	holds(t, filepath.Join(image, "d/synced"), "kept")
	holds(t, filepath.Join(image, "d/opened-with-sync"), "kept")
	holds(t, filepath.Join(image, "d/renamed"), "")
	holds(t, filepath.Join(image, "d/unsynced"), "")

	// A sync of the folder brings the names, not the bytes.
	dir, err := os.Open(at("d"))
	must(t, err)
	must(t, errors.Join(dir.Sync(), dir.Close()))
	put(t, at("d/synced"), "x", os.O_TRUNC, false)
	image = m.Image(0)
	holds(t, filepath.Join(image, "d/renamed"), "kept")
	holds(t, filepath.Join(image, "d/opened-with-sync"), "")
	holds(t, filepath.Join(image, "d/synced"), "kept")

	must(t, os.RemoveAll(at("d")))
	holds(t, filepath.Join(m.Image(0), "d/renamed"), "kept")
	if entries, err := os.ReadDir(m.Dir); err != nil || len(entries) != 0 {
		t.Errorf("%d entries left, %v", len(entries), err)
	}
}

// Chance writes back some of what was not synced, and none of what was.
func TestChance(t *testing.T) {
	m := powercut.Mount(t)
	path := filepath.Join(m.Dir, "f")
	put(t, path, "old", 0, true)
	put(t, path, "new", 0, false)
	seen := map[string]int{}
	for seed := range uint64(40) {
		data, err := os.ReadFile(filepath.Join(m.Image(seed+1), "f"))
		must(t, err)
		seen[string(data)]++
	}
	if seen["old"] == 0 || seen["new"] == 0 || len(seen) != 2 {
		t.Errorf("after cuts: %v, want old and new", seen)
	}
}

// A disk that lost its power takes nothing any more, and the next one begins with what the medium held.
func TestPowerGoesAndComesBack(t *testing.T) {
	dir, image := t.TempDir(), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	m, err := powercut.At(dir, "")
	if err != nil {
		t.Skip(err)
	}
	must(t, os.Mkdir(at("d"), 0o700))
	put(t, at("d/f"), "kept", 0, true)
	put(t, at("d/f"), "lost", 0, false)
	must(t, m.Cut(image, 0))
	if err := os.WriteFile(at("d/late"), []byte("late"), 0o600); err == nil {
		t.Error("written without power")
	}
	holds(t, at("d/f"), "lost")
	must(t, m.Unmount())

	m, err = powercut.At(dir, image)
	must(t, err)
	holds(t, at("d/f"), "kept")
	holds(t, at("d/late"), "")
	put(t, at("d/f"), "lost", 0, false)
	holds(t, filepath.Join(imageOf(t, m), "d/f"), "kept")
	must(t, m.Unmount())
}

// imageOf cuts the power without luck.
func imageOf(t *testing.T, m *powercut.FS) string {
	t.Helper()
	to := t.TempDir()
	must(t, m.Cut(to, 0))
	return to
}
