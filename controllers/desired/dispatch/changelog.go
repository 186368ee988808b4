package dispatch

import (
	"slices"
	"time"

	"github.com/frond-edge/frond/api/wire"
)

const (
	// recentPeriod is how long a change of another replica's node is remembered: longer than it takes to detect that the
	// other replica is dead, 1.5 s, also while the hub elects a leader, 4 to 9 s.
	recentPeriod = 10 * time.Second
	// maxRecent bounds the memory of these changes: 6 MB. A change that is dropped is found by the load of its node.
	maxRecent = 1 << 16
)

// changeLog holds the recent changes of nodes that other replicas own, oldest first.
type changeLog struct{ changes []recentChange }

type recentChange struct {
	node *Node
	key  wire.Key
	at   time.Time
}

func (l *changeLog) add(n *Node, key wire.Key, now time.Time) {
	for len(l.changes) > 0 && (len(l.changes) >= maxRecent || now.Sub(l.changes[0].at) > recentPeriod) {
		l.changes = l.changes[1:] // the next growth of the slice frees it
	}
	l.changes = append(l.changes, recentChange{node: n, key: key, at: now})
}

// since returns the changes after a moment, oldest first. The slice is the log's own.
func (l *changeLog) since(after time.Time) []recentChange {
	first := slices.IndexFunc(l.changes, func(c recentChange) bool { return c.at.After(after) })
	if first < 0 {
		return nil
	}
	return l.changes[first:]
}

// nodesSince returns the nodes with changes after a moment, each once.
func (l *changeLog) nodesSince(after time.Time) (nodes []*Node) {
	seen := map[*Node]struct{}{}
	for _, c := range l.since(after) {
		if _, there := seen[c.node]; !there {
			seen[c.node] = struct{}{}
			nodes = append(nodes, c.node)
		}
	}
	return nodes
}
