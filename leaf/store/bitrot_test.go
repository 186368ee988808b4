package store_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/leaftest"
	"github.com/frond-edge/frond/leaf/store"
)

// history is what a store has been, commit by commit, and all contents that any object ever had.
type history struct {
	states   []map[string]string
	contents map[string]bool
	all      []wire.Message // the hub's last word, for a full attach
}

// marked opens a store that keeps its mark.
func marked(t *testing.T, dir string) *node {
	t.Helper()
	return openNode(t, dir, store.Config{Mark: filepath.Join(dir, "store.mark")})
}

func content(n *node) map[string]string {
	state := map[string]string{}
	for _, e := range first(n.All()) {
		state[e.Key.Name] = string(e.Object)
	}
	return state
}

func (h *history) note(n *node) {
	state := content(n)
	h.states = append(h.states, state)
	for _, object := range state {
		h.contents[object] = true
	}
}

// worn makes a store with a life behind it: a snapshot, changes, deletions from above and here, and writes of its own. It
// returns two images of its folder: as kill -9 leaves it, and as an orderly end does.
func worn(t *testing.T) (killed, ended string, h *history) {
	t.Helper()
	n := marked(t, t.TempDir())
	h = live(t, n, func(int) {})
	// Every write is synced, so a copy of the idle folder is what a kill leaves.
	killed, ended = t.TempDir(), t.TempDir()
	must(t, os.CopyFS(killed, os.DirFS(n.dir)))
	n.js.Conn().Close()
	n.leaf.Stop()
	must(t, os.CopyFS(ended, os.DirFS(n.dir)))
	return killed, ended, h
}

// live gives a store its life, and calls after each step of it.
func live(t *testing.T, n *node, after func(step int)) *history {
	t.Helper()
	h := &history{contents: map[string]bool{}}
	var snapshot []wire.Message
	for i := range uint64(30) {
		snapshot = append(snapshot, apply(i+1, fmt.Sprintf("o%02d", i), fmt.Sprint("u", i), fmt.Sprintf("content-of-%02d", i)))
	}
	must(t, n.Replace(t.Context(), snapshot, "s1", 30))
	h.note(n)
	for i := range uint64(30) {
		seq, name, uid := 31+i, fmt.Sprintf("o%02d", i), fmt.Sprint("u", i)
		switch {
		case i%5 == 4:
			must(t, n.Apply(t.Context(), []wire.Message{tombstone(seq, name, uid)}, seq))
		case i%7 == 6:
			_, err := n.Delete(t.Context(), key(name), uid, nil)
			must(t, err)
			snapshot[i].Sequence = seq // the hub still has it
			h.all = append(h.all, snapshot[i])
		default:
			m := apply(seq, name, uid, fmt.Sprintf("newer-%02d", i))
			must(t, n.Apply(t.Context(), []wire.Message{m}, seq))
			h.all = append(h.all, m)
		}
		h.note(n)
		after(int(i))
	}
	_, err := n.Put(t.Context(), key("own"), object("own", "mine"), nil)
	must(t, err)
	h.note(n)
	after(30)
	return h
}

// Whatever a disk does to one of the store's files: the node starts; what it holds is something that was once written;
// it claims to know all of its objects only if these are exactly those of one moment; and an attach heals it.
func TestRot(t *testing.T) {
	killed, ended, h := worn(t)
	for image, dir := range map[string]string{"killed": killed, "ended": ended} {
		for _, file := range leaftest.Files(t, dir) {
			for _, damage := range leaftest.Damages() {
				t.Run(strings.Join([]string{image, filepath.Base(file), damage.Name}, "/"), func(t *testing.T) {
					t.Parallel()
					n := &node{t: t, dir: t.TempDir()}
					must(t, os.CopyFS(n.dir, os.DirFS(dir)))
					damage.Apply(t, filepath.Join(n.dir, file))
					n = marked(t, n.dir)
					h.check(t, n)
				})
			}
		}
	}
}

func (h *history) check(t *testing.T, n *node) {
	t.Helper()
	got := content(n)
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
	h.healed(t, n)
	n = n.restart(store.Config{Mark: filepath.Join(n.dir, "store.mark")}, nil)
	n.wantCursor("s1", 60)
	h.healed(t, n)
}

// healed checks that after an attach the hub's objects are there, and nothing else of the hub's.
func (h *history) healed(t *testing.T, n *node) {
	t.Helper()
	want := map[string]string{}
	for _, m := range h.all {
		want[m.Key.Name] = string(m.Object)
	}
	for _, e := range n.DeletedHere() {
		delete(want, e.Key.Name)
	}
	got := content(n)
	delete(got, "own")
	if !maps.Equal(got, want) {
		t.Errorf("after the attach it holds %d objects, want %d", len(got), len(want))
	}
	if _, err := n.Put(t.Context(), key("own"), object("own", "mine"), nil); err != nil {
		t.Errorf("write after the attach: %v", err)
	}
}
