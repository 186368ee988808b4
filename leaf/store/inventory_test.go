package store_test

import (
	"testing"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// The inventory covers the objects that the cloud sent: the node's own writes to them, or of other objects, do not change it.
func TestCensus(t *testing.T) {
	n := newNode(t, store.Config{Merge: func(_ wire.Key, local, _ []byte) ([]byte, error) { return local, nil }})
	must(t, n.Replace(t.Context(), []wire.Message{applyMessage(1, "a", "u1", "x"), applyMessage(2, "b", "u2", "x")}, "s1", 2))
	var want wire.Inventory
	want.Add(configMapKey("a"), "u1", applyMessage(1, "a", "u1", "x").Version)
	want.Add(configMapKey("b"), "u2", applyMessage(2, "b", "u2", "x").Version)
	check := func(when string, want wire.Inventory, deleted int) {
		t.Helper()
		cursor, got, gone := n.Inventory()
		if got != want || len(gone) != deleted || cursor != n.Cursor() {
			t.Errorf("%s: %+v, %d deleted here, cursor %+v; want %+v and %d", when, got, len(gone), cursor, want, deleted)
		}
	}
	check("as given", want, 0)
	_, err := n.Put(t.Context(), configMapKey("a"), objectJSON("u1", "status of the kubelet"), nil)
	must(t, err)
	_, err = n.Put(t.Context(), configMapKey("own"), objectJSON("u9", "a mirror pod"), nil)
	must(t, err)
	check("after local writes", want, 0)
	_, err = n.Delete(t.Context(), configMapKey("b"), "", nil)
	must(t, err)
	var left wire.Inventory
	left.Add(configMapKey("a"), "u1", applyMessage(1, "a", "u1", "x").Version)
	check("after a deletion here", left, 1)
	must(t, n.Apply(t.Context(), []wire.Message{applyMessage(3, "a", "u1", "y")}, 3))
	left = wire.Inventory{}
	left.Add(configMapKey("a"), "u1", applyMessage(3, "a", "u1", "y").Version)
	check("after a message", left, 1)
	n.openStore(store.Config{})
	if _, got, _ := n.Inventory(); got != left {
		t.Errorf("opened again: %+v, want %+v", got, left)
	}
}
