package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		os.Exit(crashChild(dir))
	}
	goleak.VerifyTestMain(kit.AwaitGoroutines(m))
}

// node is a leaf with an open store.
type node struct {
	*store.Store
	t    testing.TB
	dir  string
	leaf *leaftest.Leaf
	js   jetstream.JetStream
}

func newNode(t testing.TB, cfg store.Config) *node {
	t.Helper()
	return openNode(t, t.TempDir(), cfg)
}

func openNode(t testing.TB, dir string, cfg store.Config) *node {
	t.Helper()
	l := leaftest.StartLeaf(t, leaf.Config{Dir: dir})
	js, err := jetstream.New(l.Client())
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, dir: dir, leaf: l, js: js}
	n.openStore(cfg)
	return n
}

func (n *node) openStore(cfg store.Config) {
	n.t.Helper()
	// A deadline of its own: without one the library gives each request 5 s, which a busy disk may exceed.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.t.Context()), time.Minute)
	defer cancel()
	s, err := store.Open(ctx, n.js, cfg, zaptest.NewLogger(n.t))
	if err != nil {
		n.t.Fatal(err)
	}
	n.Store = s
	if cfg.HighWaterFile != "" { // a store without it has no file, and need not be kept
		n.t.Cleanup(func() { must(n.t, s.Close()) })
	}
}

// restart stops the leaf, runs between, and opens leaf and store again from the disk.
func (n *node) restart(cfg store.Config, between func()) *node {
	n.t.Helper()
	n.js.Conn().Close()
	n.leaf.Stop()
	if between != nil {
		between()
	}
	return openNode(n.t, n.dir, cfg)
}

func configMapKey(name string) wire.Key {
	return wire.Key{Resource: "configmaps", Namespace: "default", Name: name}
}

func objectJSON(uid, data string) []byte {
	return fmt.Appendf(nil, `{"metadata":{"name":"x","uid":%q},"data":%q}`, uid, data)
}

func applyMessage(seq uint64, name, uid, data string) wire.Message {
	return wire.Message{
		Key: configMapKey(name), Op: wire.Apply, UID: uid, Version: fmt.Sprint("v", seq), ClusterEpoch: "c1",
		Object: objectJSON(uid, data), Sequence: seq,
	}
}

func deleteMessage(seq uint64, name, uid string) wire.Message {
	return wire.Message{Key: configMapKey(name), Op: wire.Delete, UID: uid, Version: fmt.Sprint("v", seq), Sequence: seq}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}

// wantData checks that the store holds an object with this content; "" for no object.
func (n *node) wantData(name, data string) {
	n.t.Helper()
	e, err := n.Get(configMapKey(name))
	switch {
	case data == "" && !errors.Is(err, store.ErrNotFound):
		n.t.Errorf("%s: %s, %v; want it not found", name, e.Object, err)
	case data == "":
	case err != nil:
		n.t.Errorf("%s: %v, want %s", name, err, data)
	case !bytes.Contains(e.Object, fmt.Appendf(nil, `"data":%q`, data)):
		n.t.Errorf("%s: %s, want data %s", name, e.Object, data)
	}
}

func (n *node) wantCursor(stream string, seq uint64) {
	n.t.Helper()
	c := n.Cursor()
	if c.StreamEpoch != stream || c.Sequence != seq || c.StoreEpoch == "" {
		n.t.Errorf("cursor %+v, want %s/%d", c, stream, seq)
	}
}

// nextEvent returns the next event within a second or so.
func nextEvent(t testing.TB, w *store.Watcher) store.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	e, err := w.Next(ctx)
	if err != nil {
		t.Fatalf("next event: %v", err)
	}
	return e
}
