package desired_test

import (
	"testing"
	"time"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
)

// A tombstone is kept for its gateway however old it gets: neither age alone purges it, nor a new owner that does not
// know what the gateway has. Here it is old after a second, not 15 minutes.
func TestEngine_KeepsTombstoneUntilAcked(t *testing.T) {
	w := newEngineEnv(t)
	node := w.createNode("a")
	w.createAccount("default")
	w.createSecret("s")
	const age = time.Second
	first, second := &fakeOwnership{}, &fakeOwnership{}
	second.setOwned(node, false)
	one := w.startEngine(desired.Config{TombstoneAge: age}, first, "one")
	two := w.startEngine(desired.Config{TombstoneAge: age}, second, "two")
	k := coreKey("secrets", w.ns, "s")
	w.createPod("one", node, mountSecret("s"))
	had := w.eventuallyMessage(node, k, "arrives", isApplied)
	w.deletePod("one")
	tomb := w.eventuallyMessage(node, k, "leaves, and gets old", func(m wire.Message) bool { return isDeleted(m) && time.Since(m.Time) > 2*age })
	// Later objects are published by an owner that has checked the tombstone repeatedly.
	later := func(engine *desired.Engine, name string) {
		t.Helper()
		engine.RecordAck(node, had.Sequence) // the gateway's only ack
		engine.Resync(node)
		w.createSecret(name)
		w.createPod("with-"+name, node, mountSecret(name))
		w.eventuallyMessage(node, coreKey("secrets", w.ns, name), "arrives", isApplied)
		if held := w.eventuallyMessage(node, k, "is still gone", isDeleted); held.Sequence != tomb.Sequence {
			t.Errorf("the tombstone is of sequence %d, want %d", held.Sequence, tomb.Sequence)
		}
	}
	later(one, "t")
	first.setOwned(node, false)
	second.setOwned(node, true)
	later(two, "u")
	w.eventuallyMessage(node, k, "is purged when the gateway has it", func(m wire.Message) bool {
		two.RecordAck(node, tomb.Sequence)
		return m.Sequence == 0
	})
}
