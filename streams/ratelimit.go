package streams

import (
	"maps"
	"time"

	"golang.org/x/time/rate"
)

const (
	// beatsPerSecond is what is heard of one node. An agent sends one each second at most, and answers; a copied disk doubles that.
	beatsPerSecond = 5
	// beatsAtOnce may come together: after a link was slow.
	beatsAtOnce = 20
	// brakesSwept is how often the nodes are forgotten that may send as many at once as one that was never heard.
	brakesSwept = 10 * time.Second
)

// brakes let so many messages of each node pass. The node is a token of the subject, which the hub lets no other node use, so
// there are as many as nodes have been heard lately. One goroutine may use it.
type brakes struct {
	nodes map[string]*brake
	swept time.Time
}

type brake struct {
	limit *rate.Limiter
	told  bool
}

func newBrakes() *brakes { return &brakes{nodes: map[string]*brake{}} }

// pass tells whether a node's message may pass, and of the first that may not that it is the first.
func (b *brakes) pass(node string, now time.Time) (pass, first bool) {
	if now.Sub(b.swept) >= brakesSwept {
		b.swept = now
		maps.DeleteFunc(b.nodes, func(_ string, n *brake) bool { return n.limit.TokensAt(now) >= beatsAtOnce })
	}
	n := b.nodes[node]
	if n == nil {
		n = &brake{limit: rate.NewLimiter(beatsPerSecond, beatsAtOnce)}
		b.nodes[node] = n
	}
	if n.limit.AllowN(now, 1) {
		return true, false
	}
	first, n.told = !n.told, true
	return false, first
}
