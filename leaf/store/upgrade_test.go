package store_test

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// unpack unpacks a folder of testdata.
func unpack(t *testing.T, name, dir string) {
	t.Helper()
	file, err := os.Open(filepath.Join("testdata", name))
	must(t, err)
	defer func() { must(t, file.Close()) }()
	zip, err := gzip.NewReader(file)
	must(t, err)
	for archive := tar.NewReader(zip); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		must(t, err)
		path := filepath.Join(dir, filepath.FromSlash(head.Name))
		if head.Typeflag == tar.TypeDir {
			must(t, os.MkdirAll(path, 0o700))
			continue
		}
		data, err := io.ReadAll(archive)
		must(t, err)
		must(t, os.WriteFile(path, data, 0o600))
	}
}

// cursor-record.tar.gz is the folder of a store as the version before wrote it, with a record of its own for each move of the cursor, and
// a mark in JSON: three objects in a full attach, a change, a deletion with an object ahead of the cursor, a deletion here, and a local write.
func TestUpgrade_CursorRecords(t *testing.T) {
	dir := t.TempDir()
	unpack(t, "cursor-record.tar.gz", dir)
	cfg := store.Config{HighWaterFile: filepath.Join(dir, "store.mark")}
	n := openNode(t, dir, cfg)
	check := func(sequence, revision uint64, a string) {
		t.Helper()
		want := wire.Cursor{StoreEpoch: "31852c2a-a67c-452e-9baa-e79c0d0a7551", StreamEpoch: "s1", Sequence: sequence}
		if n.Cursor() != want || n.Revision() != revision {
			t.Errorf("cursor %+v at revision %d, want %+v at %d", n.Cursor(), n.Revision(), want, revision)
		}
		for name, data := range map[string]string{"a": a, "b": "", "c": "", "d": "7", "own": "mine"} {
			n.wantData(name, data)
		}
		if gone := n.DeletedHere(); len(gone) != 1 || gone[0].UID != "u3" {
			t.Errorf("deleted here: %+v", gone)
		}
	}
	check(6, 12, "4") // and Open wrote nothing
	must(t, n.Apply(t.Context(), []wire.Message{applyMessage(7, "d", "u4", "7"), applyMessage(8, "a", "u1", "8")}, 8))
	check(8, 13, "8")
	n = n.restart(cfg, nil)
	check(8, 13, "8")
}
