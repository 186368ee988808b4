package grants

import (
	"testing"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/published"
)

// TestAddServices_KeepsTheWholeUntilAllIsComplete: a node that asks by need keeps a whole scope that the stream holds until the stream
// holds the markers of all scopes on the kind that it was granted; a whole one that the stream does not hold does not come back.
func TestAddServices_KeepsTheWholeUntilAllIsComplete(t *testing.T) {
	whole := wire.ServiceScopes()[0]
	within := whole
	within.Namespace = "shop"
	fixed := map[kinds.ID]*kinds.Spec{}
	for _, k := range kinds.Table(true) {
		fixed[k.ID()] = k
	}
	book := NewBook(Config{Fixed: fixed, ServicesByNeed: func(string) bool { return true }})
	for name, tt := range map[string]struct {
		held []wire.Key
		want bool
	}{
		"no mark":                           {[]wire.Key{whole.Marker(), within.Marker()}, true},
		"what was asked for is not there":   {[]wire.Key{wire.ServicesByNeedKey(), whole.Marker()}, true},
		"what was asked for is complete":    {[]wire.Key{wire.ServicesByNeedKey(), whole.Marker(), within.Marker()}, false},
		"the whole is not there any more":   {[]wire.Key{wire.ServicesByNeedKey()}, false},
		"the whole went, the rest is there": {[]wire.Key{wire.ServicesByNeedKey(), within.Marker()}, false},
	} {
		var state published.State
		read := map[wire.Key]wire.Message{}
		for i, key := range tt.held {
			read[key] = wire.Message{Key: key, Op: wire.Apply, Sequence: uint64(i + 1)}
		}
		state.EndLoad(state.BeginLoad(), read, "", 1)
		next := map[scopeID]wire.ScopeKind{scopeIDOf(within.Scope): within}
		book.addServices(NewNode("n", &state), next, true)
		if _, got := next[scopeIDOf(whole.Scope)]; got != tt.want {
			t.Errorf("%s: the node has the whole: %v", name, got)
		}
	}
}
