package identity

import (
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Wrong tokens that are looked at, within throttleSpan; more lock out for what is left of it. A token has 82 bits after its dot, so
// this is not for the guesser, but for the time of the others.
const (
	throttleSpan = time.Minute
	// maxPerAddressAndToken: of one address at one token. A site of many gateways has one address, and may have an old token in its image.
	maxPerAddressAndToken = 10
	// maxPerAddress: at any token.
	maxPerAddress = 300
	// maxPerToken: of any address.
	maxPerToken = 60
	// maxThrottleEntries bounds the memory; who comes when it is full shares one entry.
	maxThrottleEntries = 1 << 16
)

// tokenThrottle counts wrong tokens. Each replica counts for itself.
type tokenThrottle struct {
	now func() time.Time
	// onLocked hears who has just been locked out.
	onLocked func(by string)

	mu       sync.Mutex
	since    time.Time      // guarded by mu; when the span began
	failures map[string]int // guarded by mu
}

func newTokenThrottle(now func() time.Time, locked func(by string)) *tokenThrottle {
	return &tokenThrottle{now: now, onLocked: locked, failures: make(map[string]int)}
}

// throttleLimits are what one guess counts for.
func throttleLimits(from, token string) map[string]struct {
	by   string
	most int
} {
	type limit = struct {
		by   string
		most int
	}
	return map[string]limit{
		"o " + from + " " + token: {"address-and-token", maxPerAddressAndToken},
		"a " + from:               {"address", maxPerAddress},
		"t " + token:              {"token", maxPerToken},
	}
}

// allow says whether another token of this id may be looked at for who comes from there.
func (g *tokenThrottle) allow(from, token string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rollWindow()
	for key, limit := range throttleLimits(networkOf(from), token) {
		if g.failures[g.entryKey(key)] >= limit.most {
			return false
		}
	}
	return true
}

// recordFailure notes a wrong token.
func (g *tokenThrottle) recordFailure(from, token string) {
	g.mu.Lock()
	g.rollWindow()
	var out []string
	for key, limit := range throttleLimits(networkOf(from), token) {
		key = g.entryKey(key)
		if g.failures[key]++; g.failures[key] == limit.most {
			out = append(out, limit.by)
		}
	}
	g.mu.Unlock()
	for _, by := range out {
		g.onLocked(by)
	}
}

// rollWindow begins a new span when the last one is over; with mu held.
func (g *tokenThrottle) rollWindow() {
	if now := g.now(); now.Sub(g.since) >= throttleSpan || now.Before(g.since) {
		g.since = now
		clear(g.failures)
	}
}

// entryKey is the key's own entry, or the one of all that found no room; with mu held.
func (g *tokenThrottle) entryKey(key string) string {
	if _, there := g.failures[key]; !there && len(g.failures) >= maxThrottleEntries {
		return key[:1]
	}
	return key
}

// networkOf is who an address stands for: a site has a /64 of IPv6.
func networkOf(from string) string {
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
