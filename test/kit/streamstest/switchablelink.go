package streamstest

import (
	"sync"
)

func (l *switchableLink) SetUp(up bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.up = up
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *switchableLink) State() (bool, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up, l.changed
}

func NewSwitchableLink() *switchableLink {
	return &switchableLink{up: true, changed: make(chan struct{})}
}

// switchableLink is a link.Link that a test turns on and off.
type switchableLink struct {
	mu      sync.Mutex
	up      bool          // guarded by mu
	changed chan struct{} // guarded by mu
}
