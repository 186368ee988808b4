package link

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"
)

// FenceDuration is how long a fence holds unless it is renewed: the cloud renews it every 15 s while it receives heartbeats of two agents.
const FenceDuration = time.Minute

// FencedLink is a link that the cloud can fence for this process, because another agent of the same identity attached first. The delivery
// and the pumps behind it wait as they do for a lost link.
type FencedLink struct {
	link Link
	log  *zap.Logger
	wake chan struct{} // with room for one: a fence was set or renewed

	mu          sync.Mutex
	fencedUntil time.Time     // guarded by mu; the end of the fence
	up          bool          // guarded by mu; the state that State returns
	changed     chan struct{} // guarded by mu; closed when up changes
}

// NewFencedLink wraps a link without a fence. It is down until Start runs.
func NewFencedLink(link Link, log *zap.Logger) *FencedLink {
	return &FencedLink{link: link, log: log, wake: make(chan struct{}, 1), changed: make(chan struct{})}
}

// State implements Link.
func (g *FencedLink) State() (up bool, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.up, g.changed
}

// Fence closes the link for a time, or extends the fence. It does not block.
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

// Fenced reports whether a fence is set.
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

// updateState computes whether the link is up and returns the time until the next check.
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
		return time.Hour // a fence wakes the loop
	}
	return left
}
