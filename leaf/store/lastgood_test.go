package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/test/kit/leaftest"
)

// lastGoodConfig configures a store with a high-water mark and a last-good copy.
func lastGoodConfig(dir string) store.Config {
	return store.Config{HighWaterFile: filepath.Join(dir, "store.mark"), LastGoodFile: filepath.Join(dir, "store.copy")}
}

// newStoreWithCopy returns a store with 50 objects from the hub and one of its own, and a copy of them.
func newStoreWithCopy(t *testing.T) *node {
	t.Helper()
	dir := t.TempDir()
	n := openNode(t, dir, lastGoodConfig(dir))
	var all []wire.Message
	for i := range uint64(50) {
		all = append(all, applyMessage(i+1, fmt.Sprintf("o%02d", i), fmt.Sprint("u", i), fmt.Sprintf("content-of-%02d", i)))
	}
	must(t, n.Replace(t.Context(), all, "s1", 50))
	_, err := n.Put(t.Context(), configMapKey("own"), objectJSON("own", "mine"), nil)
	must(t, err)
	must(t, n.SaveLastGood(t.Context()))
	return n
}

// reopenDamaged flips a bit of each text in the store's blocks, and reopens the store. Without its index the server cuts
// off the records after the first damage.
func (n *node) reopenDamaged(index bool, texts ...string) *node {
	n.t.Helper()
	return n.restart(lastGoodConfig(n.dir), func() {
		for _, text := range texts {
			flipBit(n.t, n.dir, text)
		}
		if !index {
			must(n.t, os.RemoveAll(onlyMatch(n.t, filepath.Join(n.dir, "jetstream/*/streams/KV_store/msgs/index.db"))))
		}
	})
}

// With a copy of the newest state a flipped bit has no effect: no full attach, and without a link every list is as before.
func TestLastGood_RepairsDamage(t *testing.T) {
	for name, index := range map[string]bool{"a record": true, "a block": false} {
		t.Run(name, func(t *testing.T) {
			n := newStoreWithCopy(t)
			epoch := n.Cursor().StoreEpoch
			n = n.reopenDamaged(index, "content-of-33")
			if c := n.Cursor(); c != (wire.Cursor{StoreEpoch: epoch, StreamEpoch: "s1", Sequence: 50}) {
				t.Errorf("cursor %+v", c)
			}
			for i := range 50 {
				n.wantData(fmt.Sprintf("o%02d", i), fmt.Sprintf("content-of-%02d", i))
			}
			n.wantData("own", "mine")
			for _, e := range onlyEntries(n.All()) {
				if !e.LastGood.IsZero() {
					t.Errorf("%s is called old, since %v", e.Key, e.LastGood)
				}
			}
			n = n.restart(lastGoodConfig(n.dir), nil)
			n.wantCursor("s1", 50)
			n.wantData("o33", "content-of-33")
		})
	}
}

// An object that changed after the copy is restored in the copy's state, and marked. The cursor goes back to the copy's, so the
// store does not claim the newest state, and an ordinary attach delivers it. An object deleted after the copy stays deleted.
func TestLastGood_OlderRecordIsMarked(t *testing.T) {
	n := newStoreWithCopy(t)
	must(t, n.Apply(t.Context(), []wire.Message{applyMessage(51, "o33", "u33", "newer-than-copy"), deleteMessage(52, "o10", "u10")}, 52))
	_, err := n.Delete(t.Context(), configMapKey("o11"), "u11", nil)
	must(t, err)
	n = n.reopenDamaged(true, "newer-than-copy")
	n.wantCursor("s1", 50)
	n.wantData("o33", "content-of-33")
	n.wantData("o10", "")
	n.wantData("o11", "")
	e, err := n.Get(configMapKey("o33"))
	must(t, err)
	if e.LastGood.IsZero() || e.Version != "v34" {
		t.Errorf("version %s, last good %v: want the copy's, and marked", e.Version, e.LastGood)
	}
	n = n.restart(lastGoodConfig(n.dir), nil) // the mark of the object survives a restart
	if e, err := n.Get(configMapKey("o33")); err != nil || e.LastGood.IsZero() {
		t.Errorf("after another start: %v, %v", e.LastGood, err)
	}
	must(t, n.Apply(t.Context(), []wire.Message{applyMessage(51, "o33", "u33", "newer-than-copy")}, 52))
	n.wantData("o33", "newer-than-copy")
	if e, err := n.Get(configMapKey("o33")); err != nil || !e.LastGood.IsZero() {
		t.Errorf("after the attach: %v, %v", e.LastGood, err)
	}
}

// A record of the copy that is another object of the same name is never restored.
func TestLastGood_NeverRestoresOtherObject(t *testing.T) {
	n := newStoreWithCopy(t)
	must(t, n.Apply(t.Context(), []wire.Message{applyMessage(51, "o33", "another", "reborn")}, 51))
	n = n.reopenDamaged(true, "reborn")
	if c := n.Cursor(); c.StreamEpoch != "" {
		t.Errorf("cursor %+v: the store lacks an object and says nothing", c)
	}
	n.wantData("o33", "")
}

// A wiped disk is a new store, even if a copy exists; a damaged copy is harmless.
func TestLastGood_AloneIsNoStore(t *testing.T) {
	n := newStoreWithCopy(t)
	epoch := n.Cursor().StoreEpoch
	n = n.restart(lastGoodConfig(n.dir), func() { must(t, os.RemoveAll(filepath.Join(n.dir, "jetstream"))) })
	if c := n.Cursor(); c.StoreEpoch == epoch || c.StreamEpoch != "" || len(onlyEntries(n.All())) != 0 {
		t.Errorf("cursor %+v and %d objects on a wiped disk", c, len(onlyEntries(n.All())))
	}
}

func TestLastGood_FullDisk(t *testing.T) {
	dir := t.TempDir()
	cfg := lastGoodConfig(dir)
	full := errors.New("full")
	cfg.CheckWritable = func() error { return full }
	n := openNode(t, dir, store.Config{HighWaterFile: cfg.HighWaterFile})
	must(t, n.Replace(t.Context(), []wire.Message{applyMessage(1, "a", "u", "x")}, "s1", 1))
	n = n.restart(cfg, nil)
	wantErr(t, n.SaveLastGood(t.Context()), store.ErrFull)
}

// Bit rot with a copy: as TestBitRot_AnyFile, and the store's claims hold for each object. A copy of the newest state and
// one from the middle of the history are tried.
func TestBitRot_WithLastGood(t *testing.T) {
	for name, at := range map[string]int{"newest": -1, "middle": 15} {
		killed, h, copied := newAgedStoreWithCopy(t, at)
		for _, file := range leaftest.Files(t, killed) {
			for _, damage := range leaftest.Damages() {
				t.Run(strings.Join([]string{name, filepath.Base(file), damage.Name}, "/"), func(t *testing.T) {
					t.Parallel()
					dir := t.TempDir()
					must(t, os.CopyFS(dir, os.DirFS(killed)))
					damage.Apply(t, filepath.Join(dir, file))
					n := openNode(t, dir, lastGoodConfig(dir))
					h.checkClaims(t, n, copied)
					must(t, n.Replace(t.Context(), h.all, "s1", 60))
					h.checkHealed(t, n)
				})
			}
		}
	}
}

// newAgedStoreWithCopy returns newAgedStore's image after kill -9, with a copy of the newest moment or of the step at.
func newAgedStoreWithCopy(t *testing.T, at int) (killed string, h *storeHistory, copied wire.Cursor) {
	t.Helper()
	dir := t.TempDir()
	n := openNode(t, dir, lastGoodConfig(dir))
	h = ageStore(t, n, func(step int) {
		if step == at || at < 0 {
			must(t, n.SaveLastGood(t.Context()))
			copied = n.Cursor()
		}
	})
	killed = t.TempDir()
	must(t, os.CopyFS(killed, os.DirFS(dir)))
	return killed, h, copied
}

// checkClaims checks a store's claims after damage: every stored state was once written. With a stream epoch it holds
// exactly the objects of its last moment, each in that state or, from a cursor no newer than the copy's, marked as old.
func (h *storeHistory) checkClaims(t *testing.T, n *node, copied wire.Cursor) {
	t.Helper()
	got, last := storeContent(n), h.states[len(h.states)-1]
	for name, object := range got {
		if !h.contents[object] {
			t.Errorf("%s holds %q, which nobody wrote", name, object)
		}
	}
	cursor := n.Cursor()
	if cursor.StreamEpoch == "" {
		return
	}
	if want, have := slices.Sorted(maps.Keys(last)), slices.Sorted(maps.Keys(got)); !slices.Equal(want, have) {
		t.Errorf("claims to know its objects at %+v: %v, want %v", cursor, have, want)
	}
	for _, e := range onlyEntries(n.All()) {
		old := string(e.Object) != last[e.Key.Name]
		if old && (e.LastGood.IsZero() || cursor.Sequence > copied.Sequence) {
			t.Errorf("%s is old, marked %v, at %+v", e.Key.Name, e.LastGood, cursor)
		}
	}
}

// A copy made during writes is of one moment: the last one repairs the objects of its time.
func TestLastGood_SavedDuringWrites(t *testing.T) {
	n := newStoreWithCopy(t)
	ctx, stop := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error {
		for ctx.Err() == nil {
			if err := n.SaveLastGood(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
		return nil
	})
	for seq := uint64(51); seq < 150; seq++ {
		name := fmt.Sprintf("o%02d", seq%10) // o33 keeps its place
		must(t, n.Apply(t.Context(), []wire.Message{applyMessage(seq, name, "u"+strings.TrimLeft(name[1:], "0"), fmt.Sprint("at-", seq))}, seq))
	}
	stop()
	must(t, g.Wait())
	must(t, n.SaveLastGood(t.Context()))
	n = n.reopenDamaged(true, "content-of-33")
	n.wantCursor("s1", 149)
	n.wantData("o33", "content-of-33")
	n.wantData("o09", "at-149")
}

// A bucket that is rebuilt from memory gets the restored records of the copy, not the older state that memory still has.
func TestRebuild_TakesLastGoodRecords(t *testing.T) {
	n := newStoreWithCopy(t)
	stream, err := n.js.Stream(t.Context(), "KV_store")
	must(t, err)
	old, err := stream.GetLastMsgForSubject(t.Context(), configMapSubject+"o20")
	must(t, err)
	must(t, n.Apply(t.Context(), []wire.Message{applyMessage(51, "o20", "u20", "newer")}, 51))
	must(t, n.SaveLastGood(t.Context()))
	last, err := stream.GetLastMsgForSubject(t.Context(), old.Subject)
	must(t, err)
	// The older record is back, with the sums and the cursor of the newest commit, as after a loss that the mark does not reveal.
	again := &nats.Msg{Subject: old.Subject, Data: old.Data, Header: nats.Header{}}
	for h := range old.Header {
		if strings.HasPrefix(h, "Frond-") {
			again.Header[h] = old.Header[h]
		}
	}
	for _, h := range []string{"Frond-Sum", "Frond-Names", "Frond-Cursor"} {
		again.Header[h] = last.Header[h]
	}
	_, err = n.js.PublishMsg(t.Context(), again)
	must(t, err)
	n = n.reopenDamaged(true, "content-of-33") // the server can neither read nor overwrite it
	for range 2 {
		n.wantCursor("s1", 51)
		n.wantData("o20", "newer")
		n.wantData("o33", "content-of-33")
		n = n.restart(lastGoodConfig(n.dir), nil)
	}
}

// A damaged copy may still be readable to its end: a flipped bit in its head is detected only there. Its cursor is then ignored.
func TestLastGood_DamagedHeadGivesNoCursor(t *testing.T) {
	n := newStoreWithCopy(t)
	must(t, n.Apply(t.Context(), []wire.Message{applyMessage(51, "o33", "u33", "newer-than-copy"), applyMessage(59, "o10", "u10", "x")}, 59))
	path := lastGoodConfig(n.dir).LastGoodFile
	data, err := os.ReadFile(path)
	must(t, err)
	dec, err := zstd.NewReader(nil)
	must(t, err)
	defer dec.Close()
	plain, err := dec.DecodeAll(data, nil)
	must(t, err)
	enc, err := zstd.NewWriter(nil)
	must(t, err)
	flipped := bytes.Replace(plain, []byte(`"sequence":50}`), []byte(`"sequence":58}`), 1)
	if bytes.Equal(flipped, plain) {
		t.Fatalf("no cursor in the copy's head: %.300s", plain)
	}
	flipped = enc.EncodeAll(append(flipped, bytes.Repeat([]byte(" "), 1<<20)...), nil) // so the end is not read with the head
	copy(flipped[len(flipped)-4:], data[len(data)-4:])                                 // the checksum is at the end
	must(t, os.WriteFile(path, flipped, 0o600))
	n = n.reopenDamaged(true, "newer-than-copy")
	if c := n.Cursor(); c.StreamEpoch != "" {
		t.Errorf("cursor %+v, from a copy that is damaged", c)
	}
	n.wantData("o10", "x")
}

// A full attach removes the older copy: the hub may have been restored to a state before its cursor, or have corrected its content.
func TestLastGood_RemovedByReplace(t *testing.T) {
	n := newStoreWithCopy(t)
	path := lastGoodConfig(n.dir).LastGoodFile
	must(t, n.Replace(t.Context(), []wire.Message{applyMessage(7, "o33", "u33", "after-roll-back")}, "s1", 40))
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the copy from before the full attach: %v", err)
	}
	must(t, n.SaveLastGood(t.Context()))
	n = n.reopenDamaged(true, "after-roll-back")
	n.wantCursor("s1", 40)
	n.wantData("o33", "after-roll-back")
}

// The partial file of a killed copy is removed, and no other file.
func TestLastGood_PartialFilesAreRemoved(t *testing.T) {
	n := newStoreWithCopy(t)
	path := lastGoodConfig(n.dir).LastGoodFile
	stale, other := filepath.Join(n.dir, ".store.copy8674665223082153551"), filepath.Join(n.dir, ".store.copy.old")
	n = n.restart(lastGoodConfig(n.dir), func() {
		must(t, errors.Join(os.WriteFile(stale, []byte("x"), 0o600), os.WriteFile(other, []byte("x"), 0o600)))
	})
	if _, err := os.Stat(stale); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an unfinished copy is still there: %v", err)
	}
	for _, kept := range []string{path, other} {
		if _, err := os.Stat(kept); err != nil {
			t.Error(err)
		}
	}
	n.wantCursor("s1", 50)
}
