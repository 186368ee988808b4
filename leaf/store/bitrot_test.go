package store_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/test/kit/leaftest"
)

// storeHistory holds the states of a store, commit by commit, and all contents that any object ever had.
type storeHistory struct {
	states   []map[string]string
	contents map[string]bool
	all      []wire.Message // the hub's latest messages, for a full attach
}

// openMarked opens a store with a high-water mark.
func openMarked(t *testing.T, dir string) *node {
	t.Helper()
	return openNode(t, dir, store.Config{HighWaterFile: filepath.Join(dir, "store.mark")})
}

func storeContent(n *node) map[string]string {
	state := map[string]string{}
	for _, e := range onlyEntries(n.All()) {
		state[e.Key.Name] = string(e.Object)
	}
	return state
}

func (h *storeHistory) recordState(n *node) {
	state := storeContent(n)
	h.states = append(h.states, state)
	for _, object := range state {
		h.contents[object] = true
	}
}

// newAgedStore returns two images of the folder of a used store: one as left by kill -9, one by an orderly stop. The store
// has had a snapshot, changes, deletions by the hub and by the node, and writes of its own.
func newAgedStore(t *testing.T) (killed, ended string, h *storeHistory) {
	t.Helper()
	n := openMarked(t, t.TempDir())
	h = ageStore(t, n, func(int) {})
	// Every write is synced, so a copy of the idle folder equals the state after a kill.
	killed, ended = t.TempDir(), t.TempDir()
	must(t, os.CopyFS(killed, os.DirFS(n.dir)))
	n.js.Conn().Close()
	n.leaf.Stop()
	must(t, os.CopyFS(ended, os.DirFS(n.dir)))
	return killed, ended, h
}

// ageStore writes the history of a store, and calls after following each step.
func ageStore(t *testing.T, n *node, after func(step int)) *storeHistory {
	t.Helper()
	h := &storeHistory{contents: map[string]bool{}}
	var snapshot []wire.Message
	for i := range uint64(30) {
		snapshot = append(snapshot, applyMessage(i+1, fmt.Sprintf("o%02d", i), fmt.Sprint("u", i), fmt.Sprintf("content-of-%02d", i)))
	}
	must(t, n.Replace(t.Context(), snapshot, "s1", 30))
	h.recordState(n)
	for i := range uint64(30) {
		seq, name, uid := 31+i, fmt.Sprintf("o%02d", i), fmt.Sprint("u", i)
		switch {
		case i%5 == 4:
			must(t, n.Apply(t.Context(), []wire.Message{deleteMessage(seq, name, uid)}, seq))
		case i%7 == 6:
			_, err := n.Delete(t.Context(), configMapKey(name), uid, nil)
			must(t, err)
			snapshot[i].Sequence = seq // the hub still has it
			h.all = append(h.all, snapshot[i])
		default:
			m := applyMessage(seq, name, uid, fmt.Sprintf("newer-%02d", i))
			must(t, n.Apply(t.Context(), []wire.Message{m}, seq))
			h.all = append(h.all, m)
		}
		h.recordState(n)
		after(int(i))
	}
	_, err := n.Put(t.Context(), configMapKey("own"), objectJSON("own", "mine"), nil)
	must(t, err)
	h.recordState(n)
	after(30)
	return h
}

// Any damage to one of the store's files: the node starts. Each object has a state that was once written. The store claims
// to hold all its objects only if these are exactly those of one moment. An attach repairs it.
func TestBitRot_AnyFile(t *testing.T) {
	killed, ended, h := newAgedStore(t)
	for image, dir := range map[string]string{"killed": killed, "ended": ended} {
		for _, file := range leaftest.Files(t, dir) {
			for _, damage := range leaftest.Damages() {
				t.Run(strings.Join([]string{image, filepath.Base(file), damage.Name}, "/"), func(t *testing.T) {
					t.Parallel()
					n := &node{t: t, dir: t.TempDir()}
					must(t, os.CopyFS(n.dir, os.DirFS(dir)))
					damage.Apply(t, filepath.Join(n.dir, file))
					n = openMarked(t, n.dir)
					h.checkStates(t, n)
				})
			}
		}
	}
}

func (h *storeHistory) checkStates(t *testing.T, n *node) {
	t.Helper()
	got := storeContent(n)
	for name, object := range got {
		if !h.contents[object] {
			t.Errorf("%s holds %q, which nobody wrote", name, object)
		}
	}
	cursor := n.Cursor()
	if cursor.StoreEpoch == "" {
		t.Error("no store epoch")
	}
	if cursor.StreamEpoch != "" {
		age := -1
		for i, state := range h.states {
			if maps.Equal(state, got) {
				age = len(h.states) - 1 - i
			}
		}
		switch {
		case age < 0:
			t.Errorf("claims to be whole at %+v with %d objects, which it never was", cursor, len(got))
		case age > 0:
			t.Errorf("claims to be whole at %+v, as it was %d commits ago", cursor, age)
		}
	}
	must(t, n.Replace(t.Context(), h.all, "s1", 60))
	h.checkHealed(t, n)
	n = n.restart(store.Config{HighWaterFile: filepath.Join(n.dir, "store.mark")}, nil)
	n.wantCursor("s1", 60)
	h.checkHealed(t, n)
}

// checkHealed checks that after an attach the hub's objects are there, and no others of the hub.
func (h *storeHistory) checkHealed(t *testing.T, n *node) {
	t.Helper()
	want := map[string]string{}
	for _, m := range h.all {
		want[m.Key.Name] = string(m.Object)
	}
	for _, e := range n.DeletedHere() {
		delete(want, e.Key.Name)
	}
	got := storeContent(n)
	delete(got, "own")
	if !maps.Equal(got, want) {
		t.Errorf("after the attach it holds %d objects, want %d", len(got), len(want))
	}
	if _, err := n.Put(t.Context(), configMapKey("own"), objectJSON("own", "mine"), nil); err != nil {
		t.Errorf("write after the attach: %v", err)
	}
}
