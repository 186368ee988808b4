package streamstest

import (
	"sync"
)

// SetUp makes the link up or down.
func (l *SwitchableLink) SetUp(up bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.up = up
	close(l.changed)
	l.changed = make(chan struct{})
}

// State implements link.Link.
func (l *SwitchableLink) State() (bool, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up, l.changed
}

// NewSwitchableLink returns a link that is up.
func NewSwitchableLink() *SwitchableLink {
	return &SwitchableLink{up: true, changed: make(chan struct{})}
}

// SwitchableLink is a link.Link that a test turns on and off.
type SwitchableLink struct {
	mu      sync.Mutex
	up      bool          // guarded by mu
	changed chan struct{} // guarded by mu
}
