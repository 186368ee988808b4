package identity

import (
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Wrong tokens that are looked at, within guessSpan; more lock out for what is left of it. A token has 82 bits after its dot, so
// this is not for the guesser, but for the time of the others.
const (
	guessSpan = time.Minute
	// guessesOfOne: of one address at one token. A site of many gateways has one address, and may have an old token in its image.
	guessesOfOne = 10
	// guessesOfAddress: at any token.
	guessesOfAddress = 300
	// guessesAtToken: of any address.
	guessesAtToken = 60
	// guessEntries bounds the memory; who comes when it is full shares one entry.
	guessEntries = 1 << 16
)

// guesses counts wrong tokens. Each replica counts for itself.
type guesses struct {
	now func() time.Time
	// locked hears who has just been locked out.
	locked func(by string)

	mu    sync.Mutex
	since time.Time      // guarded by mu; when the span began
	wrong map[string]int // guarded by mu
}

func newGuesses(now func() time.Time, locked func(by string)) *guesses {
	return &guesses{now: now, locked: locked, wrong: make(map[string]int)}
}

// limits are what one guess counts for.
func limits(from, token string) map[string]struct {
	by   string
	most int
} {
	type limit = struct {
		by   string
		most int
	}
	return map[string]limit{
		"o " + from + " " + token: {"address-and-token", guessesOfOne},
		"a " + from:               {"address", guessesOfAddress},
		"t " + token:              {"token", guessesAtToken},
	}
}

// allowed says whether another token of this id may be looked at for who comes from there.
func (g *guesses) allowed(from, token string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.turn()
	for key, limit := range limits(network(from), token) {
		if g.wrong[g.place(key)] >= limit.most {
			return false
		}
	}
	return true
}

// count notes a wrong token.
func (g *guesses) count(from, token string) {
	g.mu.Lock()
	g.turn()
	var out []string
	for key, limit := range limits(network(from), token) {
		key = g.place(key)
		if g.wrong[key]++; g.wrong[key] == limit.most {
			out = append(out, limit.by)
		}
	}
	g.mu.Unlock()
	for _, by := range out {
		g.locked(by)
	}
}

// turn begins a new span when the last one is over; with mu held.
func (g *guesses) turn() {
	if now := g.now(); now.Sub(g.since) >= guessSpan || now.Before(g.since) {
		g.since = now
		clear(g.wrong)
	}
}

// place is the key's own entry, or the one of all that found no room; with mu held.
func (g *guesses) place(key string) string {
	if _, there := g.wrong[key]; !there && len(g.wrong) >= guessEntries {
		return key[:1]
	}
	return key
}

// network is who an address stands for: a site has a /64 of IPv6.
func network(from string) string {
	address, err := netip.ParseAddr(strings.Trim(from, "[]"))
	if err != nil || address.Unmap().Is4() {
		return from
	}
	prefix, err := address.WithZone("").Prefix(64)
	if err != nil {
		return from
	}
	return prefix.String()
}
