package partitions

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

var three = []string{"hub-1", "hub-2", "hub-3"}

// led returns one partition for each leader, with copies on the other servers.
func led(leaders ...string) []partition {
	all := make([]partition, len(leaders))
	for i, leader := range leaders {
		others := slices.DeleteFunc(slices.Clone(three), func(server string) bool { return server == leader })
		all[i] = partition{stream: fmt.Sprint("DESIRED-", i), leader: leader, copies: others, current: true}
	}
	return all
}

func TestNextMove(t *testing.T) {
	lagging := led("hub-1", "hub-1", "hub-1")
	lagging[2].current = false
	electing := led("hub-1", "hub-1", "hub-1")
	electing[0].leader = ""
	for name, tt := range map[string]struct {
		all  []partition
		want bool
	}{
		"one partition":           {led("hub-1"), false},
		"spread":                  {led("hub-1", "hub-2", "hub-3"), false},
		"spread, not equally":     {led("hub-1", "hub-2", "hub-3", "hub-1"), false},
		"two of three":            {led("hub-1", "hub-1", "hub-2"), true},
		"all on one":              {led("hub-1", "hub-1", "hub-1"), true},
		"a copy lags":             {lagging, false},
		"an election is going on": {electing, false},
		"a hub of one server":     {[]partition{{stream: "DESIRED-0", leader: "hub", current: true}, {stream: "DESIRED-1", leader: "hub", current: true}}, false},
	} {
		m, ok := nextMove(tt.all)
		if ok != tt.want {
			t.Errorf("%s: %+v, %v", name, m, ok)
		}
	}
}

// From any leaders the moves end, and end evenly.
func TestNextMove_EndsEvenly(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // not a secret
	for range 200 {
		leaders := make([]string, 1+random.IntN(16))
		for i := range leaders {
			leaders[i] = three[random.IntN(3)]
		}
		all := led(leaders...)
		for moves := 0; ; moves++ {
			m, ok := nextMove(all)
			if !ok {
				break
			}
			if moves > len(all) {
				t.Fatalf("%v: %d moves", leaders, moves)
			}
			i := slices.IndexFunc(all, func(p partition) bool { return p.stream == m.stream })
			all[i] = led(m.to)[0]
			all[i].stream = m.stream
		}
		counts := slices.Collect(maps.Values(countLeaders(all)))
		if slices.Max(counts)-slices.Min(counts) > 1 {
			t.Errorf("%v end as %v", leaders, countLeaders(all))
		}
	}
}
