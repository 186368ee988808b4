package leaf

import (
	"testing"
	"time"
)

// A server is taken for one that met a full disk only with evidence, or if it stays unhealthy: on a slow disk it looks unhealthy for
// seconds while streams are created, and a restart would begin that again.
func TestDiskFailureDetector_NeedsEvidenceOrTime(t *testing.T) {
	const mib = 1 << 20
	plenty, low, tight := DiskSpace{Free: 64 << 30}, DiskSpace{Free: 3 * mib, Low: true}, DiskSpace{Free: mib / 2}
	type check struct {
		space     DiskSpace
		unhealthy bool
	}
	repeat := func(c check, n int) (all []check) {
		for range n {
			all = append(all, c)
		}
		return all
	}
	cases := map[string]struct {
		born   bool
		checks []check // one a second
		want   bool    // after the last
	}{
		"healthy":                           {checks: repeat(check{plenty, false}, 30)},
		"slow creation of streams":          {checks: repeat(check{plenty, true}, 15)},
		"unhealthy for long":                {checks: repeat(check{plenty, true}, 16), want: true},
		"unhealthy with a pause":            {checks: append(repeat(check{plenty, true}, 15), check{plenty, false}, check{plenty, true}, check{plenty, true})},
		"one unhealthy check on a low disk": {checks: []check{{low, false}, {low, true}}},
		"low disk":                          {checks: []check{{low, true}, {low, true}}, want: true},
		"tight disk without a reserve":      {checks: []check{{tight, false}, {plenty, true}, {plenty, true}}, want: true},
		"damaged from the start":            {born: true, checks: repeat(check{plenty, true}, 30)},
		"damaged from the start, low":       {born: true, checks: []check{{low, true}, {low, true}}, want: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			detector := diskFailureDetector{floor: mib, born: c.born}
			got, now := false, time.Unix(1_700_000_000, 0)
			for _, check := range c.checks {
				got = detector.observe(now, check.space, check.unhealthy)
				now = now.Add(time.Second)
			}
			if got != c.want {
				t.Errorf("failed: %t, want %t", got, c.want)
			}
		})
	}
}
