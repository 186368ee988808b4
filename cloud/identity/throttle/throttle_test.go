package throttle

import (
	"testing"
	"time"
)

func TestTokenThrottle_LocksTheGuesserFirst(t *testing.T) {
	now := time.Unix(1000, 0)
	var locked []string
	g := NewTokenThrottle(func() time.Time { return now }, func(by string) { locked = append(locked, by) })
	for range maxPerAddressAndToken {
		if !g.Allow("10.0.0.1", "aaaaaa") {
			t.Fatal("locked too soon")
		}
		g.RecordFailure("10.0.0.1", "aaaaaa")
	}
	if g.Allow("10.0.0.1", "aaaaaa") {
		t.Error("not locked")
	}
	if !g.Allow("10.0.0.1", "bbbbbb") || !g.Allow("10.0.0.2", "aaaaaa") {
		t.Error("others are locked, too")
	}
	for i := range maxPerToken { // a guesser with a /48
		g.RecordFailure("2001:db8:0:"+string("0123456789abcdef"[i%16])+"::1", "aaaaaa")
	}
	if g.Allow("10.0.0.3", "aaaaaa") {
		t.Error("a token that all guess at is not locked")
	}
	if len(locked) != 2 || locked[0] != "address-and-token" || locked[1] != "token" {
		t.Errorf("told: %v", locked)
	}
	now = now.Add(throttleSpan)
	if !g.Allow("10.0.0.1", "aaaaaa") {
		t.Error("locked for ever")
	}
	for i := range maxThrottleEntries + 100 { // as many addresses as there are
		g.RecordFailure(NetworkOf("10."+string(rune('a'+i%26)))+time.Duration(i).String(), "cccccc")
	}
	if n := len(g.failures); n > maxThrottleEntries+3 {
		t.Errorf("%d entries are kept", n)
	}
}

func TestNetworkOf(t *testing.T) {
	for from, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "2001:db8:1:2:3::4": "2001:db8:1:2::/64", "[2001:db8:1:2:9::4]": "2001:db8:1:2::/64",
		"fe80::1%eth0": "fe80::/64", "::ffff:10.0.0.1": "::ffff:10.0.0.1", "": "", "x": "x",
	} {
		if got := NetworkOf(from); got != want {
			t.Errorf("%q: %q, want %q", from, got, want)
		}
	}
}
