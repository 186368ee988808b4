package identity_test

import (
	"testing"

	"go.uber.org/zap/zaptest"

	api "github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/cloud/identity"
	"github.com/frond-edge/frond/internal/lifecycle"
)

// A previous key ends once its node has connected with the newest one, and not with one that was the newest before.
func TestKeyConfirmer_EndsPreviousKeyByNewestOnly(t *testing.T) {
	w := newKubeFixture(t)
	settler := identity.NewKeyConfirmer(w.objects, zaptest.NewLogger(t))
	g, other := w.newGateway("settle-1", ""), w.newGateway("settle-2", "")
	renewed := func(g *testGateway) {
		t.Helper()
		g.editSpec(func(s *api.NodeIdentitySpec) {
			s.Previous = s.Key
			g.newKey()
			s.Key = g.key
		})
	}
	g.writeRecord()
	other.writeRecord()
	before := g.key
	renewed(g)
	settler.KeySeen(g.node, before)
	w.startParts(lifecycle.Part{Name: "settler", Start: settler.Start})
	for range 2 { // the second one starts after all that the first one had recorded
		renewed(other)
		settler.KeySeen(other.node, other.key)
		waitUntil(t, func() bool { return other.readSpec().Previous == "" }, "a previous key goes on")
	}
	if spec := g.readSpec(); spec.Previous != before {
		t.Errorf("the previous key ended before the newest one came: %+v", spec)
	}
	settler.KeySeen(g.node, g.key)
	waitUntil(t, func() bool { return g.readSpec().Previous == "" }, "the previous key goes on")
}
