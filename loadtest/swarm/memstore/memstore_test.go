package memstore_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/loadtest/swarm/memstore"
	"github.com/frond-edge/frond/test/kit"
)

func key(name string) wire.Key {
	return wire.Key{Resource: "configmaps", Namespace: "ns", Name: name}
}

func apply(name string, sequence uint64) wire.Message {
	return wire.Message{Key: key(name), Op: wire.Apply, UID: "u-" + name, Version: name, Sequence: sequence}
}

func deleted(name string, sequence uint64) wire.Message {
	return wire.Message{Key: key(name), Op: wire.Delete, Sequence: sequence}
}

// inventoryOf is what the objects of a store should sum up to.
func inventoryOf(s *memstore.Store) wire.Inventory {
	var sum wire.Inventory
	for k, o := range s.Select("", "configmaps", "ns") {
		sum.Add(k, o.UID, o.Version)
	}
	return sum
}

func TestStore_FollowsTheRulesOfADeliverStore(t *testing.T) {
	var told []string
	s := memstore.New("epoch", func(applied []wire.Message, gone []wire.Key) {
		for _, m := range applied {
			told = append(told, string(m.Op)+" "+m.Key.Name)
		}
		for _, k := range gone {
			told = append(told, "gone "+k.Name)
		}
	})
	check := func(what string, sequence uint64, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, told); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		told = nil
		cursor, sum := s.Inventory()
		if cursor.Sequence != sequence || sum != inventoryOf(s) {
			t.Errorf("%s: at %d with %+v, want %d with %+v", what, cursor.Sequence, sum, sequence, inventoryOf(s))
		}
	}
	kit.Must(t, s.Replace(t.Context(), []wire.Message{apply("a", 1), apply("b", 2)}, "stream", 5))
	check("first snapshot", 5, "apply a", "apply b")
	kit.Must(t, s.Apply(t.Context(), []wire.Message{apply("a", 4), apply("c", 6), deleted("b", 8)}, 6))
	check("an old message is ignored, a tombstone may be ahead", 6, "apply c", "delete b")
	kit.Must(t, s.Apply(t.Context(), []wire.Message{apply("b", 7)}, 7))
	check("a message before a tombstone does not resurrect", 7)
	kit.Must(t, s.Apply(t.Context(), []wire.Message{apply("b", 9)}, 9))
	check("one after it does", 9, "apply b")
	if !s.Holds(apply("b", 9)) || s.Holds(apply("b", 10)) {
		t.Error("holds is wrong")
	}
	kit.Must(t, s.Replace(t.Context(), []wire.Message{{Key: key("a"), Sequence: 1}, apply("d", 11)}, "stream", 12))
	check("a snapshot keeps what it names, and deletes the rest", 12, append([]string{"apply d"}, goneInAnyOrder(told)...)...)
	if s.Len() != 2 {
		t.Errorf("%d objects", s.Len())
	}
}

// goneInAnyOrder returns the deletions among what was told, which have no order, if they are those of b and c.
func goneInAnyOrder(told []string) []string {
	if len(told) == 3 && told[1]+told[2] == "gone cgone b" {
		return []string{"gone c", "gone b"}
	}
	return []string{"gone b", "gone c"}
}
