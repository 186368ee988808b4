package identity_test

import (
	"testing"

	"go.uber.org/zap/zaptest"

	api "github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/cloud/identity"
	"github.com/frond-edge/frond/internal/lifecycle"
)

// A previous key ends once its node came with the newest one, and not once it came with one that was the newest before.
func TestAPreviousKeyEndsByTheNewestOneOnly(t *testing.T) {
	w := kubeWorld(t)
	settler := identity.NewSettler(w.objects, zaptest.NewLogger(t))
	g, other := w.gateway("settle-1", ""), w.gateway("settle-2", "")
	renewed := func(g *gateway) {
		t.Helper()
		g.change(func(s *api.NodeIdentitySpec) {
			s.Previous = s.Key
			g.newKey()
			s.Key = g.key
		})
	}
	g.known()
	other.known()
	before := g.key
	renewed(g)
	settler.Seen(g.node, before)
	w.run(lifecycle.Part{Name: "settler", Start: settler.Start})
	for range 2 { // the second one begins after all that the first one came with
		renewed(other)
		settler.Seen(other.node, other.key)
		eventually(t, func() bool { return other.spec().Previous == "" }, "a previous key goes on")
	}
	if spec := g.spec(); spec.Previous != before {
		t.Errorf("the previous key ended before the newest one came: %+v", spec)
	}
	settler.Seen(g.node, g.key)
	eventually(t, func() bool { return g.spec().Previous == "" }, "the previous key goes on")
}
