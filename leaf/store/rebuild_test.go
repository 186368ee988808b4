package store_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// newStaleSoleCopy returns a store that was sealed and then written to, and the copy from which it was rebuilt.
func newStaleSoleCopy(t *testing.T, dir string) (n *node, sole []byte) {
	t.Helper()
	newPlainStore(t, dir, 20)
	path := lastGoodConfig(dir).LastGoodFile
	n = openNode(t, dir, sealingConfig(t, dir))
	must(t, n.SaveLastGood(t.Context()))
	return n, readSoleCopy(t, path)
}

// readSoleCopy returns a copy as written at the start of a rebuild.
func readSoleCopy(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	dec, err := zstd.NewReader(nil)
	must(t, err)
	defer dec.Close()
	plain, err := dec.DecodeAll(data, nil)
	must(t, err)
	enc, err := zstd.NewWriter(nil)
	must(t, err)
	return enc.EncodeAll(bytes.Replace(plain, []byte("}\n"), []byte(`,"sole":true}`+"\n"), 1), nil)
}

// After a power cut a file system may restore the copy from which the store was rebuilt. The bucket is newer, and whole.
func TestRebuild_StaleSoleCopyIsIgnored(t *testing.T) {
	dir := t.TempDir()
	n, sole := newStaleSoleCopy(t, dir)
	must(t, n.Apply(t.Context(), []wire.Message{applyMessage(22, "open", "u0", "newer")}, 22))
	_, err := n.Put(t.Context(), configMapKey("own"), objectJSON("own", "mine"), nil)
	must(t, err)
	path := lastGoodConfig(dir).LastGoodFile
	n = n.restart(sealingConfig(t, dir), func() { must(t, os.WriteFile(path, sole, 0o600)) })
	n.wantCursor("s1", 22)
	n.wantData("open", "newer")
	n.wantData("own", "mine")
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old copy is still there: %v", err)
	}
	n = n.restart(sealingConfig(t, dir), func() { // without its bucket the copy is the store
		must(t, errors.Join(os.WriteFile(path, sole, 0o600), os.RemoveAll(filepath.Join(dir, "jetstream"))))
	})
	n.wantCursor("s1", 21)
	n.wantData("open", "for-everybody")
}

// If the key is lost while the bucket is being rebuilt, all objects except Secrets are there, also those that no cloud has.
func TestRebuild_LostKeyKeepsNonSecrets(t *testing.T) {
	dir := t.TempDir()
	n, _ := newStaleSoleCopy(t, dir)
	_, err := n.Put(t.Context(), configMapKey("own"), objectJSON("own", "mine"), nil)
	must(t, err)
	must(t, n.SaveLastGood(t.Context()))
	epoch, revision := n.Cursor().StoreEpoch, n.Revision()
	cfg := sealingConfig(t, dir)
	cfg.Sealer = newRing(t, 9)
	n = n.restart(cfg, func() {
		must(t, errors.Join(os.WriteFile(cfg.LastGoodFile, readSoleCopy(t, cfg.LastGoodFile), 0o600), os.RemoveAll(filepath.Join(dir, "jetstream"))))
	})
	for range 2 {
		if c := n.Cursor(); c != (wire.Cursor{StoreEpoch: epoch}) || n.Revision() <= revision {
			t.Errorf("cursor %+v, revision %d; want only epoch %s, and past %d", c, n.Revision(), epoch, revision)
		}
		n.wantData("own", "mine")
		n.wantData("open", "for-everybody")
		if list, _ := n.List("", "secrets", ""); len(list) != 0 {
			t.Errorf("%d secrets", len(list))
		}
		revision = n.Revision() - 1
		n = n.restart(cfg, nil)
	}
	all := secretMessages(20)
	must(t, n.Replace(t.Context(), all, "s1", 21))
	n.wantSecrets(all)
}

// With little disk space left no second store is written; the first Open with enough space seals.
func TestReseal_WaitsForDiskSpace(t *testing.T) {
	dir := t.TempDir()
	all := newPlainStore(t, dir, 20)
	cfg := sealingConfig(t, dir)
	cfg.LowSpace = func() bool { return true }
	n := openNode(t, dir, cfg)
	n.wantSecrets(all)
	revision := n.Revision()
	n = n.restart(sealingConfig(t, dir), func() {
		if len(filesContaining(t, dir, "hidden-001")) == 0 {
			t.Error("sealed though the disk was low")
		}
	})
	n.wantSecrets(all)
	if n.Revision() == revision {
		t.Error("never created again")
	}
}

// copyBlocker seals, and at one point makes the copy's path unwritable.
type copyBlocker struct {
	store.Sealer
	path string
	left int
}

func (c *copyBlocker) Seal(name string, plain []byte) ([]byte, error) {
	if c.left--; c.left == 0 {
		if err := errors.Join(os.Remove(c.path), os.MkdirAll(c.path, 0o700)); err != nil {
			return nil, err
		}
	}
	return c.Sealer.Seal(name, plain)
}

// The store is whole before its copy is written again: a failure of that does not stop the store, and the older copy is removed.
func TestRebuild_FailedLastGoodDoesNotStopService(t *testing.T) {
	dir := t.TempDir()
	all := newPlainStore(t, dir, 20)
	cfg := sealingConfig(t, dir)
	cfg.Sealer = &copyBlocker{Sealer: cfg.Sealer, path: cfg.LastGoodFile, left: 21} // 20 in the sole copy, and one in the bucket
	n := openNode(t, dir, cfg)
	n.wantSecrets(all)
	if _, err := os.Stat(cfg.LastGoodFile); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the copy is still there: %v", err)
	}
	must(t, n.SaveLastGood(t.Context()))
	n = n.restart(sealingConfig(t, dir), nil)
	n.wantSecrets(all)
}

// Quarantined records stay for their time, and those that an older version quarantined as plain text are sealed.
func TestRebuild_KeepsQuarantine(t *testing.T) {
	dir := t.TempDir()
	n := openNode(t, dir, lastGoodConfig(dir))
	all := secretMessages(20)
	must(t, n.Replace(t.Context(), all, "s1", 21))
	for subject, data := range map[string]string{"secrets.default.s001": "hidden-foreign", "configmaps.default.open": "foreign-to-all"} {
		_, err := n.js.Publish(t.Context(), "$KV.store.object.core."+subject, []byte(data))
		must(t, err)
	}
	n.openStore(lastGoodConfig(dir))
	must(t, n.Replace(t.Context(), all, "s1", 21))
	n = n.restart(sealingConfig(t, dir), nil)
	n.wantSecrets(all)
	if files := filesContaining(t, dir, "hidden-"); len(files) > 0 {
		t.Errorf("a Secret is in %v", files)
	}
	stream, err := n.js.Stream(t.Context(), "KV_store")
	must(t, err)
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("$KV.store.quarantine.>"))
	must(t, err)
	if len(info.State.Subjects) != 2 {
		t.Errorf("%v in quarantine, want two", info.State.Subjects)
	}
	for subject := range info.State.Subjects {
		m, err := stream.GetLastMsgForSubject(t.Context(), subject)
		must(t, err)
		ttl, err := time.ParseDuration(m.Header.Get("Nats-TTL"))
		if err != nil || ttl <= 0 || ttl > 7*24*time.Hour || m.Header.Get("Frond-Reason") == "" {
			t.Errorf("%s: %v, %v", subject, m.Header, err)
		}
		sealed := m.Header.Get("Frond-Sealed") == "yes"
		if !sealed && string(m.Data) != "foreign-to-all" || sealed && !strings.HasSuffix(m.Header.Get("Frond-Subject"), "s001") {
			t.Errorf("%s: %v %s", subject, m.Header, m.Data)
		}
	}
	revision := n.Revision()
	n = n.restart(sealingConfig(t, dir), nil)
	n.wantSecrets(all)
	if n.Revision() != revision {
		t.Errorf("revision %d, then %d: created again again", revision, n.Revision())
	}
}
