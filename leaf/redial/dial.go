package redial

import "time"

// stalledAfter is how long a hub that has accepted a connection may take before it counts as overloaded: more than the 3 s for which it
// waits for a cloudcore's decision. One that closes the connection sooner has decided, or is a load balancer without servers.
const stalledAfter = 4 * time.Second

// Dial is how far a dial came.
type Dial struct {
	// ReachedAt is when the hub accepted the connection, ClosedAt when it ended; zero before.
	ReachedAt, ClosedAt time.Time
	// Refused: the hub has decided against the node.
	Refused bool
}

// Stalled reports whether the hub was reached and did not answer in time.
func (d Dial) Stalled(now time.Time) bool {
	if d.ReachedAt.IsZero() || d.Refused {
		return false
	}
	if !d.ClosedAt.IsZero() {
		now = d.ClosedAt
	}
	return now.Sub(d.ReachedAt) >= stalledAfter
}
