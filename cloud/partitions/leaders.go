package partitions

import (
	"maps"
	"slices"
)

// partition is where the copies of one stream are.
type partition struct {
	stream, leader string
	// copies are the servers with the other copies; current says that all of them have all that the leader has.
	copies  []string
	current bool
}

// move is a change of a stream's leader.
type move struct{ stream, from, to string }

// countLeaders counts the streams that each server leads; a server with copies only has 0.
func countLeaders(all []partition) map[string]int {
	count := map[string]int{}
	for _, p := range all {
		if p.leader != "" {
			count[p.leader]++
		}
		for _, server := range p.copies {
			count[server] += 0
		}
	}
	return count
}

// nextMove returns the move that makes the leaders more even, if there is one: from the server that leads most to the one of the stream's
// other servers that leads least. While any stream has no leader or a copy that lags there is none, because a server has just come back or
// is about to go, and a leader that leaves then could leave the stream without one.
func nextMove(all []partition) (m move, ok bool) {
	count := countLeaders(all)
	for _, p := range all {
		if p.leader == "" || !p.current {
			return move{}, false
		}
	}
	best := 1 // a move between servers that differ by one only swaps them
	for _, p := range all {
		for _, to := range p.copies {
			if gain := count[p.leader] - count[to]; gain > best {
				m, ok, best = move{stream: p.stream, from: p.leader, to: to}, true, gain
			}
		}
	}
	return m, ok
}

// sameLeaders reports whether two looks saw the same leaders.
func sameLeaders(a, b []partition) bool {
	return slices.EqualFunc(a, b, func(p, q partition) bool { return p.stream == q.stream && p.leader == q.leader })
}

// servers returns the servers of a count, sorted.
func servers(count map[string]int) []string { return slices.Sorted(maps.Keys(count)) }
