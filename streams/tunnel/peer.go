package tunnel

import (
	"sync/atomic"
	"time"

	"github.com/frond-edge/frond/streams/tunnel/stream"
)

// silentTTL is how long a node that did not answer is considered silent: kubectl exec tries again at once with another protocol, possibly
// through another Dialer, and its user should not wait twice.
const silentTTL = 2 * time.Second

// peer is a node that has streams or was found silent lately.
type peer struct {
	token        string
	growth       *stream.Pool // of its windows
	lastReceived atomic.Int64 // Unix nanoseconds
	roundTrip    stream.RoundTrip

	streams     int           // guarded by mux.mu
	silentUntil time.Time     // guarded by mux.mu
	silent      chan struct{} // closed and replaced when a Dial found the node silent; guarded by mux.mu
}

// markSilent ends the dials that wait for the node. mux.mu is held.
func (p *peer) markSilent() {
	p.silentUntil = time.Now().Add(silentTTL)
	close(p.silent)
	p.silent = make(chan struct{})
}
