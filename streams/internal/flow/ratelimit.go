package flow

import (
	"maps"
	"time"

	"golang.org/x/time/rate"
)

const (
	// heartbeatsPerSecond is the rate limit of one node. An agent sends at most one heartbeat a second, and answers to probes; a copied
	// disk doubles that.
	heartbeatsPerSecond = 5
	// heartbeatBurst is the burst allowed after a slow link.
	heartbeatBurst = 20
	// limiterSweepPeriod is how often the limiter drops nodes whose full burst is available again.
	limiterSweepPeriod = 10 * time.Second
)

// NodeLimiter is a rate limiter per node. The node is a token of the subject, which the hub lets no other node use, so there are as many
// entries as nodes that sent lately. It is for one goroutine.
type NodeLimiter struct {
	nodes     map[string]*nodeBucket
	lastSweep time.Time
}

type nodeBucket struct {
	limit    *rate.Limiter
	reported bool
}

// NewNodeLimiter returns a limiter that knows no node.
func NewNodeLimiter() *NodeLimiter { return &NodeLimiter{nodes: map[string]*nodeBucket{}} }

// Allow reports whether a node's message passes; first reports that this is the first one refused.
func (b *NodeLimiter) Allow(node string, now time.Time) (pass, first bool) {
	if now.Sub(b.lastSweep) >= limiterSweepPeriod {
		b.lastSweep = now
		maps.DeleteFunc(b.nodes, func(_ string, n *nodeBucket) bool { return n.limit.TokensAt(now) >= heartbeatBurst })
	}
	n := b.nodes[node]
	if n == nil {
		n = &nodeBucket{limit: rate.NewLimiter(heartbeatsPerSecond, heartbeatBurst)}
		b.nodes[node] = n
	}
	if n.limit.AllowN(now, 1) {
		return true, false
	}
	first, n.reported = !n.reported, true
	return false, first
}
