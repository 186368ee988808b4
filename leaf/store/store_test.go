package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

func TestPutDeleteAndConflicts(t *testing.T) {
	ctx, n := t.Context(), newNode(t, store.Config{})
	revision := func(r uint64) *uint64 { return &r }

	_, err := n.Put(ctx, configMapKey("a"), []byte(`not json`), nil)
	wantErr(t, err, store.ErrInvalid)
	_, err = n.Put(ctx, configMapKey("a"), []byte(`{}`), nil)
	wantErr(t, err, store.ErrInvalid)
	_, err = n.Put(ctx, configMapKey("a"), objectJSON("u1", "0"), revision(7))
	wantErr(t, err, store.ErrNotFound)

	e, err := n.Put(ctx, configMapKey("a"), objectJSON("u1", "1"), revision(0))
	must(t, err)
	if e.UID != "u1" || e.Revision == 0 || e.Sequence != 0 || e.Version != "" || e.Revision != n.Revision() {
		t.Errorf("entry %+v", e)
	}
	_, err = n.Put(ctx, configMapKey("a"), objectJSON("u1", "2"), revision(0))
	wantErr(t, err, store.ErrConflict)
	_, err = n.Put(ctx, configMapKey("a"), objectJSON("u1", "2"), revision(e.Revision-1))
	wantErr(t, err, store.ErrConflict)
	e2, err := n.Put(ctx, configMapKey("a"), objectJSON("u1", "2"), &e.Revision)
	must(t, err)
	if e2.Revision <= e.Revision {
		t.Errorf("revision %d after %d", e2.Revision, e.Revision)
	}
	n.wantData("a", "2")

	_, err = n.Delete(ctx, configMapKey("b"), "", nil)
	wantErr(t, err, store.ErrNotFound)
	_, err = n.Delete(ctx, configMapKey("a"), "u9", nil)
	wantErr(t, err, store.ErrConflict)
	_, err = n.Delete(ctx, configMapKey("a"), "u1", &e.Revision)
	wantErr(t, err, store.ErrConflict)
	d, err := n.Delete(ctx, configMapKey("a"), "u1", &e2.Revision)
	must(t, err)
	if d.Revision != n.Revision() || string(d.Object) != string(e2.Object) {
		t.Errorf("deleted %+v", d)
	}
	n.wantData("a", "")
	_, err = n.Put(ctx, configMapKey("a"), objectJSON("u1", "3"), nil)
	wantErr(t, err, store.ErrConflict)
	_, err = n.Put(ctx, configMapKey("a"), objectJSON("u2", "4"), revision(0))
	must(t, err)
	n.wantData("a", "4")
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = n.Put(cancelled, configMapKey("c"), objectJSON("u1", "1"), nil)
	wantErr(t, err, context.Canceled)
}

func TestApplyOrder(t *testing.T) {
	ctx, n := t.Context(), newNode(t, store.Config{})
	must(t, n.Replace(ctx, nil, "s1", 10))
	n.wantCursor("s1", 10)

	must(t, n.Apply(ctx, []wire.Message{applyMessage(11, "a", "u1", "11"), applyMessage(12, "b", "u2", "12"), applyMessage(13, "a", "u1", "13")}, 13))
	n.wantData("a", "13")
	n.wantCursor("s1", 13)
	e, _ := n.Get(configMapKey("a"))
	if e.Sequence != 13 || e.Version != "v13" || e.ClusterEpoch != "c1" || e.UID != "u1" {
		t.Errorf("entry %+v", e)
	}
	// Late and repeated messages, below the cursor.
	must(t, n.Apply(ctx, []wire.Message{applyMessage(11, "a", "u1", "11"), deleteMessage(12, "a", "u1")}, 13))
	n.wantData("a", "13")
	// A gap: 16 came before 14 and 15; the cursor waits for them.
	must(t, n.Apply(ctx, []wire.Message{applyMessage(16, "a", "u1", "16"), deleteMessage(17, "b", "u2"), deleteMessage(18, "new", "u5")}, 13))
	n.wantData("a", "16")
	n.wantData("b", "")
	n.wantCursor("s1", 13)
	n = n.restart(store.Config{}, nil)
	must(t, n.Apply(ctx, []wire.Message{applyMessage(14, "a", "u1", "14"), applyMessage(15, "b", "u2", "15"), applyMessage(15, "new", "u5", "15")}, 18))
	n.wantData("a", "16")
	n.wantData("b", "")
	n.wantData("new", "")
	n.wantCursor("s1", 18)
	// A tombstone of an object that was never stored: in the hub the name is free now; the node's own object is another one.
	_, err := n.Put(ctx, configMapKey("own"), objectJSON("u6", "own"), nil)
	must(t, err)
	must(t, n.Apply(ctx, []wire.Message{applyMessage(17, "stale", "u", "")}, 18))
	must(t, n.Apply(ctx, []wire.Message{deleteMessage(19, "own", "other")}, 19))
	n.wantData("own", "own")
	must(t, n.Apply(ctx, nil, 5))
	n.wantCursor("s1", 19)
	// Out of order within one call.
	must(t, n.Apply(ctx, []wire.Message{deleteMessage(20, "twice", "u9"), applyMessage(19, "twice", "u9", "19")}, 20))
	n.wantData("twice", "")
	// A message that is not an object is ignored, not fatal.
	bad := applyMessage(21, "a", "u1", "")
	bad.Object = []byte("null")
	odd := applyMessage(21, "a", "u1", "x")
	odd.Op = "patch"
	must(t, n.Apply(ctx, []wire.Message{bad, odd, applyMessage(22, "c", "u3", "21")}, 22))
	n.wantData("a", "16")
	n.wantData("c", "21")
	must(t, n.Apply(ctx, []wire.Message{deleteMessage(23, "a", "skipped")}, 23))
	n.wantData("a", "")
}

func TestDelete_IsNotUndoneByLateMessage(t *testing.T) {
	ctx, n := t.Context(), newNode(t, store.Config{})
	must(t, n.Replace(ctx, []wire.Message{applyMessage(1, "pod", "u1", "1"), applyMessage(2, "other", "u2", "2")}, "s1", 2))
	_, err := n.Delete(ctx, configMapKey("pod"), "u1", nil)
	must(t, err)
	check := func() {
		t.Helper()
		n.wantData("pod", "")
		if got := n.DeletedHere(); len(got) != 1 || got[0].UID != "u1" || got[0].Key != configMapKey("pod") {
			t.Errorf("deleted here: %+v", got)
		}
	}
	check()
	must(t, n.Apply(ctx, []wire.Message{applyMessage(3, "pod", "u1", "3")}, 3))
	check()
	n = n.restart(store.Config{}, nil)
	check()
	must(t, n.Apply(ctx, []wire.Message{applyMessage(4, "pod", "u1", "4")}, 4))
	check()
	must(t, n.Replace(ctx, []wire.Message{applyMessage(4, "pod", "u1", "4"), applyMessage(2, "other", "u2", "2")}, "s1", 4))
	check()
	must(t, n.Replace(ctx, []wire.Message{applyMessage(1, "pod", "u1", "4"), applyMessage(2, "other", "u2", "2")}, "s2", 2))
	check()

	t.Run("tombstone", func(t *testing.T) {
		must(t, n.Apply(ctx, []wire.Message{deleteMessage(5, "pod", "u1")}, 5))
		if got := n.DeletedHere(); len(got) != 0 {
			t.Errorf("still remembered after the tombstone: %+v", got)
		}
		n.wantData("pod", "")
	})
	t.Run("another object of that name", func(t *testing.T) {
		must(t, n.Apply(ctx, []wire.Message{applyMessage(6, "pod", "u7", "6")}, 6))
		n.wantData("pod", "6")
		_, err := n.Delete(ctx, configMapKey("pod"), "u7", nil)
		must(t, err)
		must(t, n.Apply(ctx, []wire.Message{applyMessage(7, "pod", "u8", "7")}, 7))
		n.wantData("pod", "7")
	})
	t.Run("forgotten", func(t *testing.T) {
		_, err := n.Delete(ctx, configMapKey("pod"), "u8", nil)
		must(t, err)
		must(t, n.ForgetDeletion(ctx, configMapKey("pod")))
		must(t, n.ForgetDeletion(ctx, configMapKey("never")))
		must(t, n.Apply(ctx, []wire.Message{applyMessage(8, "pod", "u8", "8")}, 8))
		n.wantData("pod", "8")
	})
	t.Run("full snapshot without it", func(t *testing.T) {
		_, err := n.Delete(ctx, configMapKey("pod"), "u8", nil)
		must(t, err)
		must(t, n.Replace(ctx, []wire.Message{applyMessage(2, "other", "u2", "2")}, "s3", 9))
		if got := n.DeletedHere(); len(got) != 0 {
			t.Errorf("still remembered after a snapshot without it: %+v", got)
		}
	})
}

// After etcd was restored to a time before the object was deleted, the object exists again, and the node must have it.
func TestDelete_IsUndoneByRestoredHistory(t *testing.T) {
	ctx, n := t.Context(), newNode(t, store.Config{})
	must(t, n.Replace(ctx, []wire.Message{applyMessage(1, "pod", "u1", "1")}, "s1", 1))
	_, err := n.Delete(ctx, configMapKey("pod"), "u1", nil)
	must(t, err)
	must(t, n.Apply(ctx, []wire.Message{applyMessage(2, "pod", "u1", "2")}, 2))
	n.wantData("pod", "")
	again := applyMessage(3, "pod", "u1", "3")
	again.ClusterEpoch = "c1/1"
	must(t, n.Apply(ctx, []wire.Message{again}, 3))
	n.wantData("pod", "3")
	n = n.restart(store.Config{}, nil)
	n.wantData("pod", "3")
	if got := n.DeletedHere(); len(got) != 0 {
		t.Errorf("deleted here: %+v", got)
	}
}

func TestReplace(t *testing.T) {
	ctx, n := t.Context(), newNode(t, store.Config{})
	if c := n.Cursor(); c.StreamEpoch != "" || c.Sequence != 0 || c.StoreEpoch == "" {
		t.Errorf("cursor of a new store %+v", c)
	}
	epoch := n.Cursor().StoreEpoch
	_, err := n.Put(ctx, configMapKey("local"), objectJSON("l", "mine"), nil)
	must(t, err)
	var all []wire.Message
	for i := range uint64(700) { // three chunks
		all = append(all, applyMessage(i+1, fmt.Sprintf("o-%03d", i), fmt.Sprint("u", i), "one"))
	}
	must(t, n.Replace(ctx, all, "s1", 700))
	if list, _ := n.List("", "configmaps", "default"); len(list) != 701 {
		t.Fatalf("%d objects, want 701", len(list))
	}
	_, err = n.Put(ctx, configMapKey("o-600"), objectJSON("u600", "status here"), nil)
	must(t, err)
	before := n.Revision()
	// The stream was rebuilt: lower sequences. Ten objects stay, one is new, the rest is gone.
	next := []wire.Message{applyMessage(1, "new", "n", "new")}
	for i := range uint64(10) {
		m := all[i]
		m.Sequence = 2 + i
		next = append(next, m)
	}
	must(t, n.Replace(ctx, next, "s2", 12))
	n.wantCursor("s2", 12)
	n.wantData("local", "mine")
	n.wantData("new", "new")
	n.wantData("o-600", "")
	if list, _ := n.List("", "configmaps", ""); len(list) != 12 {
		t.Errorf("%d objects, want 12", len(list))
	}
	// 1 new, 690 deletions, 1 cursor: unchanged objects were not written again.
	if wrote := n.Revision() - before; wrote > 700 {
		t.Errorf("%d writes, want about 692", wrote)
	}
	must(t, n.Apply(ctx, []wire.Message{applyMessage(13, "o-000", "u0", "thirteen")}, 13))
	n.wantData("o-000", "thirteen")
	n = n.restart(store.Config{}, nil)
	n.wantCursor("s2", 13)
	if n.Cursor().StoreEpoch != epoch {
		t.Errorf("store epoch %s, want %s", n.Cursor().StoreEpoch, epoch)
	}
	if list, _ := n.List("", "configmaps", ""); len(list) != 12 {
		t.Errorf("%d objects after restart, want 12", len(list))
	}
}

func TestMerge(t *testing.T) {
	var calls []string
	cfg := store.Config{Merge: func(k wire.Key, local, desired []byte) ([]byte, error) {
		calls = append(calls, k.Name)
		switch k.Name {
		case "broken":
			return nil, errors.New("no")
		case "nonsense":
			return []byte("x"), nil
		}
		return objectJSON("u1", "merged"), nil
	}}
	ctx, n := t.Context(), newNode(t, cfg)
	_, err := n.Put(ctx, configMapKey("unknown-uid"), objectJSON("", "local"), nil)
	must(t, err)
	first := []wire.Message{applyMessage(1, "a", "u1", "1"), applyMessage(2, "broken", "u1", "2"), applyMessage(3, "nonsense", "u1", "3"), applyMessage(4, "unknown-uid", "u4", "4")}
	must(t, n.Apply(ctx, first, 4))
	n.wantData("a", "1")
	n.wantData("unknown-uid", "merged")
	must(t, n.Apply(ctx, []wire.Message{applyMessage(5, "a", "u1", "5"), applyMessage(6, "broken", "u1", "6"), applyMessage(7, "nonsense", "u1", "7")}, 7))
	n.wantData("a", "merged")
	n.wantData("broken", "6")
	n.wantData("nonsense", "7")
	must(t, n.Apply(ctx, []wire.Message{applyMessage(8, "a", "other", "8")}, 8))
	n.wantData("a", "8")
	if diff := cmp.Diff([]string{"unknown-uid", "a", "broken", "nonsense"}, calls); diff != "" {
		t.Errorf("merges (-want +got):\n%s", diff)
	}
}

func TestListAndAll(t *testing.T) {
	ctx, n := t.Context(), newNode(t, store.Config{})
	put := func(k wire.Key) {
		_, err := n.Put(ctx, k, objectJSON("u", "x"), nil)
		must(t, err)
	}
	put(wire.Key{Resource: "pods", Namespace: "b", Name: "1"})
	put(wire.Key{Resource: "pods", Namespace: "a", Name: "2"})
	put(wire.Key{Resource: "pods", Namespace: "a", Name: "1"})
	put(wire.Key{Resource: "nodes", Name: "n"})
	put(wire.Key{Group: "apps", Resource: "pods", Namespace: "a", Name: "not core"})
	names := func(list []store.Entry, revision uint64) (s string) {
		if revision != n.Revision() {
			t.Errorf("revision %d, want %d", revision, n.Revision())
		}
		for _, e := range list {
			s += e.Key.Namespace + "/" + e.Key.Name + " "
		}
		return s
	}
	for _, tt := range []struct{ got, want string }{
		{names(n.List("", "pods", "")), "a/1 a/2 b/1 "},
		{names(n.List("", "pods", "b")), "b/1 "},
		{names(n.List("", "nodes", "")), "/n "},
		{names(n.List("", "none", "")), ""},
		{names(n.All()), "/n a/1 a/2 b/1 a/not core "},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
}

func TestStore_FullRefusesAndStaysUsable(t *testing.T) {
	ctx, n := t.Context(), newNode(t, store.Config{MaxBytes: 64 << 10})
	must(t, n.Replace(ctx, nil, "s1", 0))
	big := func(name string, seq uint64) wire.Message {
		return applyMessage(seq, name, "u", strings.Repeat("x", 2000))
	}
	var err error
	seq := uint64(1)
	for ; err == nil && seq < 100; seq++ {
		err = n.Apply(ctx, []wire.Message{big(fmt.Sprint("o", seq), seq)}, seq)
	}
	wantErr(t, err, store.ErrFull)
	if c := n.Cursor(); c.Sequence >= seq-1 {
		t.Errorf("cursor %d after a refused message %d", c.Sequence, seq-1)
	}
	var batch []wire.Message
	for i := range uint64(20) {
		batch = append(batch, big(fmt.Sprint("p", i), seq+i))
	}
	cursor := n.Cursor()
	wantErr(t, n.Apply(ctx, batch, seq+20), store.ErrFull)
	if n.Cursor() != cursor {
		t.Errorf("cursor %+v, want %+v", n.Cursor(), cursor)
	}
	for i := range uint64(10) {
		_, err := n.Delete(ctx, configMapKey(fmt.Sprint("o", i+1)), "", nil)
		must(t, err)
	}
	must(t, n.Apply(ctx, []wire.Message{big("fits", seq+30)}, seq+30))
}

func TestMetricsSurviveReopen(t *testing.T) {
	reg := prometheus.NewRegistry()
	n := newNode(t, store.Config{Metrics: reg})
	_, err := n.Put(t.Context(), configMapKey("a"), objectJSON("u", "x"), nil)
	must(t, err)
	n.openStore(store.Config{Metrics: reg})
	families, err := reg.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() == "frond_store_objects" {
			if got := f.GetMetric()[0].GetGauge().GetValue(); got != 1 {
				t.Errorf("%v objects, want 1", got)
			}
			return
		}
	}
	t.Error("no frond_store_objects")
}
