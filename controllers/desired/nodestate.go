package desired

import (
	"time"

	"github.com/frond-edge/frond/controllers/desired/deletionguard"
	"github.com/frond-edge/frond/controllers/desired/dispatch"
	"github.com/frond-edge/frond/controllers/desired/grants"
	"github.com/frond-edge/frond/controllers/desired/published"
	"github.com/frond-edge/frond/controllers/desired/withheld"
)

// nodeState is the state of one edge node.
type nodeState struct {
	name string
	// published and guard have locks of their own.
	published published.State
	guard     deletionguard.State

	// Guarded by nodeTable.mu.

	// present: there is a Node object, and it is an edge node's.
	present bool
	// admitted: the node has authenticated to the cloud, so it is served whatever its Node says.
	admitted bool
	// deleted: its Node object existed and is gone. Heartbeats do not extend the grace period of such a node.
	deleted bool
	// grants are the scopes that components at the node were granted.
	grants *grants.Node
	// work is what waits for the node's load.
	work *dispatch.Node
	// withheld are the needed objects in protected namespaces, each reported once.
	withheld withheld.Reported
	// absentSince is when the Node object was last known, or when a node that never had one last sent a heartbeat.
	absentSince time.Time
}

// newNodeState creates the state of a node that is not known to exist.
func newNodeState(name string) *nodeState {
	s := &nodeState{name: name, absentSince: time.Now()}
	s.grants, s.work = grants.NewNode(name, &s.published), dispatch.NewNode(name, &s.published)
	return s
}

// forgetPublished drops what the stream holds, and what the guard made of it. The caller holds nodeTable.mu.
func (s *nodeState) forgetPublished() {
	s.published.Forget()
	s.guard.Reset()
}

// renewTerm drops what was loaded in another term, and reports whether the stream's content is loaded for this term. The
// caller holds nodeTable.mu.
func (s *nodeState) renewTerm(term uint64) (loaded bool) {
	if s.published.OfOtherTerm(term) {
		s.forgetPublished()
	}
	return s.published.Loaded()
}

// gone reports whether the node has had no Node object for so long that it counts as permanently gone. The caller holds
// nodeTable.mu.
func (s *nodeState) gone(cfg *Config) bool {
	return !s.present && time.Since(s.absentSince) >= cfg.Grace && !time.Now().Before(cfg.Restore.EndsAt())
}
