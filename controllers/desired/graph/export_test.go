package graph

import "github.com/frond-edge/frond/controllers/desired/shortkey"

// HashAllAlike makes an empty graph give all keys the same hash.
func HashAllAlike[N comparable](g *Graph[N]) {
	g.hash = func(shortkey.Key) uint64 { return 0 }
}
