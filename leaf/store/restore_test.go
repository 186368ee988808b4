package store_test

import (
	"fmt"
	"testing"

	"github.com/frond-edge/frond/api/wire"
)

// A bucket that lost its newest records holds the previous record of each object as if it were the newest. After the copy there were only
// updates, so the names are right. Records that are newer in the copy are taken from it, marked; the cursor is the copy's.
func TestRestore_OlderRecordsAreMarked(t *testing.T) {
	n := newStoreWithCopy(t)
	must(t, n.Apply(t.Context(), []wire.Message{applyMessage(51, "o33", "u33", "first")}, 51))
	n.writeRottenRecord(52)
	must(t, n.Apply(t.Context(), []wire.Message{applyMessage(60, "o33", "u33", "second")}, 60))
	n.writeStatus("own", "ready at the copy")
	must(t, n.SaveLastGood(t.Context()))
	for i := range 5 {
		n.writeStatus("own", fmt.Sprint("ready ", i))
	}
	must(t, n.Apply(t.Context(), []wire.Message{applyMessage(70, "o12", "u12", "after the copy")}, 70))
	n = n.reopenDamaged(false, "rotten")
	n.wantCursor("s1", 60)
	for name, data := range map[string]string{"o33": "second", "own": "ready at the copy", "o40": "rotten"} {
		n.wantData(name, data)
		if e, err := n.Get(configMapKey(name)); err != nil || e.LastGood.IsZero() {
			t.Errorf("%s is older than it was and not marked: %v, %v", name, e.LastGood, err)
		}
	}
	if e, err := n.Get(configMapKey("o20")); err != nil || !e.LastGood.IsZero() {
		t.Errorf("o20 never changed and is called old: %v, %v", e.LastGood, err)
	}
	must(t, n.Apply(t.Context(), []wire.Message{applyMessage(70, "o12", "u12", "after the copy")}, 70))
	n.wantData("o12", "after the copy")
}

// An object that was missing or deleted at the copy's time reappears in a state from before it: the store is unsure.
func TestRestore_ResurrectedObjectIsUnsure(t *testing.T) {
	for name, c := range map[string]struct{ before, after func(n *node) }{
		"no record": {
			func(n *node) { n.deleteObject("extra", "") },
			func(n *node) { n.writeStatus("extra", "again") },
		},
		"deleted here": {
			func(n *node) { n.deleteObject("o33", "u33") },
			func(n *node) {
				must(n.t, n.ForgetDeletion(n.t.Context(), configMapKey("o33")))
				must(n.t, n.Apply(n.t.Context(), []wire.Message{applyMessage(70, "o33", "u33", "again")}, 70))
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newStoreWithCopy(t)
			n.writeStatus("extra", "first")
			n.writeRottenRecord(52)
			c.before(n)
			must(t, n.SaveLastGood(t.Context()))
			c.after(n)
			n.writeStatus("own", "ready")
			n = n.reopenDamaged(false, "rotten")
			if c := n.Cursor(); c.StreamEpoch != "" {
				t.Errorf("cursor %+v: the store has what was not there at its copy's time", c)
			}
		})
	}
}

// writeRottenRecord writes the record in which a bit will flip: the records after it in the block are cut off with it.
func (n *node) writeRottenRecord(seq uint64) {
	n.t.Helper()
	must(n.t, n.Apply(n.t.Context(), []wire.Message{applyMessage(seq, "o40", "u40", "rotten")}, seq))
}

// writeStatus writes an object of the node itself.
func (n *node) writeStatus(name, data string) {
	n.t.Helper()
	uid := ""
	if name == "own" {
		uid = name
	}
	_, err := n.Put(n.t.Context(), configMapKey(name), objectJSON(uid, data), nil)
	must(n.t, err)
}

func (n *node) deleteObject(name, uid string) {
	n.t.Helper()
	_, err := n.Delete(n.t.Context(), configMapKey(name), uid, nil)
	must(n.t, err)
}
