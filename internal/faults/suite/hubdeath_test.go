package suite_test

import (
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/faults"
)

// TestDeathOfAHubServer kills each hub server in turn, HUB_DEATHS times, and says how long the next change of each gateway takes
// when it is made at once, and what of that is the hub's: an election when the server led the stream.
func TestDeathOfAHubServer(t *testing.T) {
	rounds := setting(t, "HUB_DEATHS", 0)
	if rounds == 0 {
		t.Skip("a measurement: set HUB_DEATHS to a number of rounds")
	}
	shared.settle(t)
	var all []time.Duration
	for round := range rounds {
		for _, hub := range []string{"hub-1", "hub-2", "hub-3"} {
			shared.must(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), hub) })
			began := time.Now()
			value := hub + "-" + strconv.FormatUint(round, 10)
			times := make([]time.Duration, len(nodes))
			var g sync.WaitGroup
			for i, node := range nodes {
				name := faults.Name(node, "map", 6)
				if err := shared.put(t.Context(), name, value); err != nil {
					t.Fatal(err)
				}
				g.Go(func() {
					shared.arrives(t, node, name, value)
					times[i] = time.Since(began)
				})
			}
			g.Wait()
			t.Logf("%s died: the next changes took %s", hub, times)
			all = append(all, times...)
			shared.must(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), hub) })
			shared.settle(t)
		}
	}
	slices.Sort(all)
	t.Logf("of %d changes: p50 %s, worst %s", len(all), all[len(all)/2].Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond))
}
