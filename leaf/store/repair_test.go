package store_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

const configMapSubject = "$KV.store.object.core.configmaps.default."

// newFilledStore returns a store with 50 objects from the hub and one of its own.
func newFilledStore(t *testing.T) (*node, []wire.Message) {
	t.Helper()
	n := newNode(t, store.Config{})
	var all []wire.Message
	for i := range uint64(50) {
		all = append(all, applyMessage(i+1, fmt.Sprintf("o%02d", i), fmt.Sprint("u", i), fmt.Sprintf("content-of-%02d", i)))
	}
	must(t, n.Replace(t.Context(), all, "s1", 50))
	_, err := n.Put(t.Context(), configMapKey("own"), objectJSON("own", "mine"), nil)
	must(t, err)
	return n, all
}

// wantRepaired checks that the store requested a full attach and that this repairs it.
func wantRepaired(t *testing.T, n *node, epoch string, all []wire.Message) {
	t.Helper()
	if c := n.Cursor(); c != (wire.Cursor{StoreEpoch: epoch}) {
		t.Errorf("cursor %+v of a damaged store, want only epoch %s", c, epoch)
	}
	must(t, n.Replace(t.Context(), all, "s1", 50))
	for i := range all {
		n.wantData(fmt.Sprintf("o%02d", i), fmt.Sprintf("content-of-%02d", i))
	}
	n = n.restart(store.Config{}, nil)
	n.wantCursor("s1", 50)
}

// A flipped bit on the disk. nats-server detects it by its own checksum and drops the record, or the following ones; the
// sum over the records shows that something is missing.
func TestBitRot(t *testing.T) {
	n, all := newFilledStore(t)
	epoch := n.Cursor().StoreEpoch
	n = n.restart(store.Config{}, func() {
		flipBit(t, n.dir, "content-of-33")
		// The server's index would hide the damage until the record is read.
		must(t, os.RemoveAll(onlyMatch(t, filepath.Join(n.dir, "jetstream/*/streams/KV_store/msgs/index.db"))))
	})
	if n.Cursor().StoreEpoch == "" {
		t.Error("no store epoch")
	}
	if n.Cursor().StoreEpoch != epoch {
		epoch = n.Cursor().StoreEpoch // the cursor's own record came after the damage and was lost with it
	}
	wantRepaired(t, n, epoch, all)
}

func TestBitRot_BehindIndex(t *testing.T) {
	n, all := newFilledStore(t)
	n = n.restart(store.Config{}, func() { flipBit(t, n.dir, "content-of-33") })
	wantRepaired(t, n, n.Cursor().StoreEpoch, all)
}

// A bit flips under an open store: memory still has all records, so nothing is lost and no attach is needed. The write that
// meets the damage fails by its timeout; the next one finds the cause.
func TestBitRot_UnderOpenStore(t *testing.T) {
	n, _ := newFilledStore(t)
	n = n.restart(store.Config{SyncTimeout: time.Second}, nil) // the server's cache is empty now
	flipBit(t, n.dir, "content-of-33")
	revision := n.Revision()
	if err := n.Apply(t.Context(), []wire.Message{applyMessage(51, "o33", "u33", "new")}, 51); err == nil {
		t.Skip("the server did not read the damaged record")
	}
	n.wantCursor("s1", 50) // the server counts the message, which is not on disk
	must(t, n.Apply(t.Context(), []wire.Message{applyMessage(51, "o33", "u33", "new")}, 51))
	if n.Revision() <= revision {
		t.Errorf("revision %d after %d", n.Revision(), revision)
	}
	n = n.restart(store.Config{}, nil)
	n.wantCursor("s1", 51)
	n.wantData("o33", "new")
	n.wantData("o32", "content-of-32")
	n.wantData("own", "mine")
}

func flipBit(t testing.TB, dir, text string) {
	t.Helper()
	blocks, err := filepath.Glob(filepath.Join(dir, "jetstream/*/streams/KV_store/msgs/*.blk"))
	must(t, err)
	for _, b := range blocks {
		data, err := os.ReadFile(b)
		must(t, err)
		if i := bytes.LastIndex(data, []byte(text)); i >= 0 {
			data[i] ^= 1
			must(t, os.WriteFile(b, data, 0o600))
			return
		}
	}
	t.Fatalf("%q is in none of %d blocks", text, len(blocks))
}

func onlyMatch(t testing.TB, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	must(t, err)
	if len(found) != 1 {
		t.Fatalf("%s: %v", pattern, found)
	}
	return found[0]
}

// Another writer wrote or removed records while the store was closed.
func TestStore_ForeignWriteWhileClosed(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, js jetstream.JetStream){
		"changed": func(t *testing.T, js jetstream.JetStream) {
			t.Helper()
			_, err := js.Publish(t.Context(), configMapSubject+"o07", []byte(`{"metadata":{}}`))
			must(t, err)
		},
		"removed": func(t *testing.T, js jetstream.JetStream) {
			t.Helper()
			s, err := js.Stream(t.Context(), "KV_store")
			must(t, err)
			must(t, s.Purge(t.Context(), jetstream.WithPurgeSubject(configMapSubject+"o07")))
		},
		"stale headers": func(t *testing.T, js jetstream.JetStream) {
			t.Helper()
			s, err := js.Stream(t.Context(), "KV_store")
			must(t, err)
			m, err := s.GetLastMsgForSubject(t.Context(), configMapSubject+"o07")
			must(t, err)
			_, err = js.PublishMsg(t.Context(), &nats.Msg{Subject: m.Subject, Data: []byte(`{"metadata":{"uid":"evil"}}`), Header: nats.Header{
				"Frond-State": m.Header["Frond-State"], "Frond-Checksum": m.Header["Frond-Checksum"],
			}})
			must(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, all := newFilledStore(t)
			epoch := n.Cursor().StoreEpoch
			change(t, n.js)
			n.openStore(store.Config{})
			n.wantData("o07", "")
			n.wantData("own", "mine")
			wantRepaired(t, n, epoch, all)
		})
	}
}

func TestQuarantine_KeepsBytes(t *testing.T) {
	n, _ := newFilledStore(t)
	_, err := n.js.Publish(t.Context(), configMapSubject+"o07", []byte(`bad bytes`))
	must(t, err)
	_, err = n.js.Publish(t.Context(), "$KV.store.what-is-this", []byte(`odd`))
	must(t, err)
	n.openStore(store.Config{})
	kv, err := n.js.KeyValue(t.Context(), "store")
	must(t, err)
	keys, err := kv.ListKeysFiltered(t.Context(), "quarantine.>")
	must(t, err)
	var got []string
	for k := range keys.Keys() {
		e, err := kv.Get(t.Context(), k)
		must(t, err)
		got = append(got, string(e.Value()))
	}
	if len(got) != 2 || got[0] != "bad bytes" || got[1] != "odd" {
		t.Errorf("quarantine holds %q", got)
	}
	n.openStore(store.Config{}) // and is not quarantined again
	if s, err := n.js.Stream(t.Context(), "KV_store"); err != nil || n.Revision() != s.CachedInfo().State.LastSeq {
		t.Errorf("store wrote at a second open: %v", err)
	}
}

// A foreign write to the bucket of an open store is detected at the next write and undone.
func TestStore_ForeignWriteWhileOpen(t *testing.T) {
	n, _ := newFilledStore(t)
	w, err := n.Watch("", "configmaps", "", n.Revision())
	must(t, err)
	defer w.Stop()
	kv, err := n.js.KeyValue(t.Context(), "store")
	must(t, err)
	must(t, kv.Delete(t.Context(), "object.core.configmaps.default.o07"))
	_, err = kv.Put(t.Context(), "object.core.configmaps.default.stranger", []byte("{}"))
	must(t, err)
	_, err = kv.Put(t.Context(), "meta.cursor", []byte("{}"))
	must(t, err)
	n.wantData("o07", "content-of-07")
	_, err = n.Put(t.Context(), configMapKey("next"), objectJSON("n", "next"), nil)
	must(t, err)
	must(t, n.Apply(t.Context(), []wire.Message{applyMessage(51, "o07", "u7", "newer")}, 51))
	for {
		if e := nextEvent(t, w); e.Entry.Key.Name == "o07" && e.Entry.Sequence == 51 {
			break
		} else if e.Type == store.Deleted {
			t.Errorf("event %s %s", e.Type, e.Entry.Key.Name)
		}
	}
	n = n.restart(store.Config{}, nil)
	n.wantCursor("s1", 51)
	n.wantData("o07", "newer")
	n.wantData("next", "next")
	n.wantData("stranger", "")
}

// Two stores on one bucket are a configuration error; neither overwrites the other.
func TestStore_TwoWriters(t *testing.T) {
	one := newNode(t, store.Config{})
	two := &node{t: t, dir: one.dir, leaf: one.leaf, js: one.js}
	two.openStore(store.Config{})
	for i := range 10 {
		e, err := one.Put(t.Context(), configMapKey("a"), objectJSON("u", fmt.Sprint("one", i)), nil)
		must(t, err)
		_, err = two.Put(t.Context(), configMapKey("b"), objectJSON("u", fmt.Sprint("two", i)), nil)
		must(t, err)
		if got, err := two.Get(configMapKey("a")); err != nil || got.Revision != e.Revision {
			t.Errorf("the second store holds %+v, %v; want %+v", got, err, e)
		}
	}
}
