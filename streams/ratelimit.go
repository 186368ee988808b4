package streams

import (
	"maps"
	"time"

	"golang.org/x/time/rate"
)

const (
	// heartbeatsPerSecond is what is heard of one node. An agent sends one each second at most, and answers; a copied disk doubles that.
	heartbeatsPerSecond = 5
	// heartbeatBurst may come together: after a link was slow.
	heartbeatBurst = 20
	// limiterSweepPeriod is how often the nodes are forgotten that may send as many at once as one that was never heard.
	limiterSweepPeriod = 10 * time.Second
)

// nodeLimiter let so many messages of each node pass. The node is a token of the subject, which the hub lets no other node use, so
// there are as many as nodes have been heard lately. One goroutine may use it.
type nodeLimiter struct {
	nodes     map[string]*nodeBucket
	lastSweep time.Time
}

type nodeBucket struct {
	limit    *rate.Limiter
	reported bool
}

func newNodeLimiter() *nodeLimiter { return &nodeLimiter{nodes: map[string]*nodeBucket{}} }

// allow tells whether a node's message may pass, and of the first that may not that it is the first.
func (b *nodeLimiter) allow(node string, now time.Time) (pass, first bool) {
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
