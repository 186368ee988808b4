package throttle

import (
	"net/netip"
	"strings"
	"sync"
	"time"
)

// The limits of wrong tokens that are checked within throttleSpan; more lock out the sender for the rest of it. A token
// has 82 bits after its dot, so the limits are not needed against guessing, but protect the time of other callers.
const (
	throttleSpan = time.Minute
	// maxPerAddressAndToken is for one address with one token. A site of many gateways has one address, and may have an
	// old token in its image.
	maxPerAddressAndToken = 10
	// maxPerAddress is for one address with any token.
	maxPerAddress = 300
	// maxPerToken is for one token from any address.
	maxPerToken = 60
	// maxThrottleEntries bounds the memory; when it is full, new senders share one entry.
	maxThrottleEntries = 1 << 16
)

// TokenThrottle limits wrong tokens. Each replica counts for itself.
type TokenThrottle struct {
	now func() time.Time
	// onLocked is called with the sender or token that was just locked out.
	onLocked func(by string)

	mu       sync.Mutex
	since    time.Time      // guarded by mu; when the span began
	failures map[string]int // guarded by mu
}

// NewTokenThrottle creates a throttle on a clock. locked is called with what was just locked out, and must not block.
func NewTokenThrottle(now func() time.Time, locked func(by string)) *TokenThrottle {
	return &TokenThrottle{now: now, onLocked: locked, failures: make(map[string]int)}
}

// throttleLimits returns the counters that one wrong token increments, with their limits.
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

// Allow reports whether another token with this id from this address may be checked.
func (g *TokenThrottle) Allow(from, token string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rollWindow()
	for key, limit := range throttleLimits(NetworkOf(from), token) {
		if g.failures[g.entryKey(key)] >= limit.most {
			return false
		}
	}
	return true
}

// RecordFailure records a wrong token.
func (g *TokenThrottle) RecordFailure(from, token string) {
	g.mu.Lock()
	g.rollWindow()
	var out []string
	for key, limit := range throttleLimits(NetworkOf(from), token) {
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

// rollWindow begins a new span when the last one is over. The caller holds mu.
func (g *TokenThrottle) rollWindow() {
	if now := g.now(); now.Sub(g.since) >= throttleSpan || now.Before(g.since) {
		g.since = now
		clear(g.failures)
	}
}

// entryKey returns the key's own entry, or the shared one if there is no room. The caller holds mu.
func (g *TokenThrottle) entryKey(key string) string {
	if _, there := g.failures[key]; !there && len(g.failures) >= maxThrottleEntries {
		return key[:1]
	}
	return key
}

// NetworkOf returns the network that an address stands for: a site has a /64 of IPv6.
func NetworkOf(from string) string {
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
