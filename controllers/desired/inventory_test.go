package desired_test

import (
	"testing"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
)

func TestCensusIsOfWhatLivesInTheStream(t *testing.T) {
	pod := func(name string) wire.Key { return wire.Key{Resource: "pods", Namespace: "default", Name: name} }
	e := desired.NewPublishedEngine("edge-1", map[wire.Key]wire.Message{
		pod("a"):              {Op: wire.Apply, UID: "u1", Version: "1", Sequence: 3},
		pod("b"):              {Op: wire.Apply, UID: "u2", Version: "2", Sequence: 5},
		pod("gone"):           {Op: wire.Delete, UID: "u3", Sequence: 9},
		wire.SnapshotMarker(): {Op: wire.Apply, Version: "1", Sequence: 6},
	})
	var both, one wire.Inventory
	both.Add(pod("a"), "u1", "1")
	both.Add(pod("b"), "u2", "2")
	one.Add(pod("a"), "u1", "1")
	if got, upTo, known := e.Inventory("edge-1", nil); got != both || upTo != 9 || !known {
		t.Errorf("%+v up to %d, known %v; want %+v up to the tombstone's 9", got, upTo, known, both)
	}
	if got, _, known := e.Inventory("edge-1", []wire.Key{pod("b"), pod("nowhere")}); got != one || !known {
		t.Errorf("without b: %+v, known %v; want %+v", got, known, one)
	}
	if _, _, known := e.Inventory("edge-2", nil); known {
		t.Error("a node is known that never was")
	}
}
