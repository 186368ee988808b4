package leaf

import (
	"strings"
	"sync"
	"time"

	"github.com/frond-edge/frond/leaf/redial"
)

// dialProgress knows how far the current dial came. nats-server tells that in its log only; the texts are interpreted here and in
// Server.setProblem.
type dialProgress struct {
	mu   sync.Mutex
	dial redial.Dial // guarded by mu
}

// current returns the progress so far.
func (p *dialProgress) current() redial.Dial {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dial
}

// begin forgets the dial before.
func (p *dialProgress) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dial = redial.Dial{}
}

// observeNotice interprets a notice of nats-server.
func (p *dialProgress) observeNotice(text string) {
	created, closed := strings.Contains(text, "Leafnode connection created"), strings.Contains(text, "Leafnode connection closed")
	if !created && !closed {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch now := time.Now(); {
	case created:
		p.dial = redial.Dial{ReachedAt: now}
	case !p.dial.ReachedAt.IsZero() && p.dial.ClosedAt.IsZero():
		p.dial.ClosedAt = now
	}
}

// setRefused records that the hub has decided against the node.
func (p *dialProgress) setRefused() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dial.Refused = true
}
