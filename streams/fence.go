package streams

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"
)

// FenceDuration is how long a fence holds unless it is renewed: the cloud does so every 15 s as long as it hears two agents.
const FenceDuration = time.Minute

// FencedLink is a link that the cloud can close to this process: when another agent of the same identity was there first.
// What stands behind it, the delivery and the pumps, waits as it does for a lost link.
type FencedLink struct {
	link Link
	log  *zap.Logger
	wake chan struct{} // of one: a fence was put up or renewed

	mu          sync.Mutex
	fencedUntil time.Time     // guarded by mu; the fence's end
	up          bool          // guarded by mu; what State last said
	changed     chan struct{} // guarded by mu; closed when open changes
}

// NewFencedLink makes an open gate before a link. It is shut until Start runs.
func NewFencedLink(link Link, log *zap.Logger) *FencedLink {
	return &FencedLink{link: link, log: log, wake: make(chan struct{}, 1), changed: make(chan struct{})}
}

// State implements Link.
func (g *FencedLink) State() (up bool, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.up, g.changed
}

// Fence shuts the gate for a time, or keeps it shut. It does not block.
func (g *FencedLink) Fence(d time.Duration) {
	g.mu.Lock()
	if !time.Now().Before(g.fencedUntil) {
		g.log.Error("fenced: another agent with this node's identity is connected and was there first; this one gets nothing and " +
			"reports nothing until the other is gone. Is its disk a copy?")
	}
	g.fencedUntil = time.Now().Add(d)
	g.mu.Unlock()
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// Fenced reports whether a fence is up.
func (g *FencedLink) Fenced() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Now().Before(g.fencedUntil)
}

// Start follows the link and the fence until ctx ends and then returns nil.
func (g *FencedLink) Start(ctx context.Context) error {
	for {
		up, changed := g.link.State()
		timer := time.NewTimer(g.updateState(up))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-changed:
		case <-g.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// updateState works out whether the gate is open and returns when to look again.
func (g *FencedLink) updateState(up bool) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	left := time.Until(g.fencedUntil)
	if open := up && left <= 0; open != g.up {
		g.up = open
		close(g.changed)
		g.changed = make(chan struct{})
	}
	if left <= 0 {
		return time.Hour // a fence wakes us
	}
	return left
}
