package leaf

import (
	"sync"
	"time"
)

// stopAnnouncementLife is longer than a hub server takes to close its links: half a minute, two minutes by nats-server's default.
const stopAnnouncementLife = 3 * time.Minute

// stopAnnouncement is the last announcement that a hub server stops. The zero value is none.
type stopAnnouncement struct {
	mu     sync.Mutex // guards all below
	server string
	at     time.Time
}

func (a *stopAnnouncement) set(server string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.server, a.at = server, now
}

// clear forgets the announcement of a server.
func (a *stopAnnouncement) clear(server string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if server == a.server {
		a.server = ""
	}
}

// announced reports whether a server has announced its stop.
func (a *stopAnnouncement) announced(server string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return server != "" && server == a.server && now.Sub(a.at) < stopAnnouncementLife
}
