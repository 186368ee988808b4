package desired_test

import (
	"testing"
	"time"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
)

// A tombstone waits for its gateway however old it gets: age alone purges nothing, and nor does a new owner that knows nothing of
// what the gateway has. Here it is old after a second, not 15 minutes.
func TestATombstoneWaitsForItsGatewayHoweverOld(t *testing.T) {
	w := newWorld(t)
	node := w.node("a")
	w.account("default")
	w.secret("s")
	const age = time.Second
	first, second := &owners{}, &owners{}
	second.set(node, false)
	one := w.engine(desired.Config{TombstoneAge: age}, first, "one")
	two := w.engine(desired.Config{TombstoneAge: age}, second, "two")
	k := key("secrets", w.ns, "s")
	w.pod("one", node, mountSecret("s"))
	had := w.eventually(node, k, "arrives", applied)
	w.deletePod("one")
	tomb := w.eventually(node, k, "leaves, and gets old", func(m wire.Message) bool { return deleted(m) && time.Since(m.Time) > 2*age })
	// What comes later is published by an owner that has looked at the tombstone again and again.
	later := func(engine *desired.Engine, name string) {
		t.Helper()
		engine.Acked(node, had.Sequence) // all that the gateway ever said
		engine.Reload(node)
		w.secret(name)
		w.pod("with-"+name, node, mountSecret(name))
		w.eventually(node, key("secrets", w.ns, name), "arrives", applied)
		if held := w.eventually(node, k, "is still gone", deleted); held.Sequence != tomb.Sequence {
			t.Errorf("the tombstone is of sequence %d, want %d", held.Sequence, tomb.Sequence)
		}
	}
	later(one, "t")
	first.set(node, false)
	second.set(node, true)
	later(two, "u")
	w.eventually(node, k, "is purged when the gateway has it", func(m wire.Message) bool {
		two.Acked(node, tomb.Sequence)
		return m.Sequence == 0
	})
}
