package shares

import (
	"cmp"
	"maps"
	"slices"
)

const (
	// highPercent is how full the stream may be before nodes are trimmed, and lowPercent how full it is afterwards: the stream's own limit drops the oldest,
	// whoever sent it, so there must be room for what is on its way.
	highPercent = 90
	lowPercent  = 80
	// floodPercent is what a node may have in percent of an equal part before it is trimmed. Nodes that send about the same stay below: the oldest of all
	// of them goes then.
	floodPercent = 125
	// maxTrims bounds the nodes that are trimmed at a time. The largest are first.
	maxTrims = 10
)

// isNearlyFull reports whether a stream with a limit has to be trimmed.
func isNearlyFull(bytes, limit uint64) bool { return bytes > limit*highPercent/100 }

// trim says how many bytes a node keeps.
type trim struct {
	node string
	keep uint64
}

// planTrims returns which nodes are trimmed, the largest first, given the bytes of each. What they keep is the same for all, and as much as possible: nodes
// that have less lose nothing.
func planTrims(bytes map[string]uint64, limit uint64) (trims []trim) {
	if len(bytes) == 0 {
		return nil
	}
	flood := limit * highPercent * floodPercent / (100 * 100 * uint64(len(bytes)))
	keep := level(slices.Collect(maps.Values(bytes)), limit*lowPercent/100)
	for node, n := range bytes {
		if n > flood && n > keep {
			trims = append(trims, trim{node: node, keep: keep})
		}
	}
	slices.SortFunc(trims, func(a, b trim) int {
		return cmp.Or(cmp.Compare(bytes[b.node], bytes[a.node]), cmp.Compare(a.node, b.node))
	})
	return trims[:min(len(trims), maxTrims)]
}

// level returns the largest level such that sizes that are cut to it fit into room.
func level(sizes []uint64, room uint64) uint64 {
	slices.Sort(sizes)
	for i, size := range sizes {
		left := uint64(len(sizes) - i)
		if size > room/left {
			return room / left
		}
		room -= size
	}
	return sizes[len(sizes)-1]
}
