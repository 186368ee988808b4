package suite_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/faults"
)

// TestHubServerLoss_ChangesArrive kills each hub server in turn, HUB_DEATHS times. It logs how long an immediate change of each
// gateway takes, and the hub's part of that: an election when the server led the stream.
func TestHubServerLoss_ChangesArrive(t *testing.T) {
	rounds := envUint(t, "HUB_DEATHS", 0)
	if rounds == 0 {
		t.Skip("a measurement: set HUB_DEATHS to a number of rounds")
	}
	shared.awaitSettled(t)
	var all []time.Duration
	for round := range rounds {
		for _, hub := range []string{"hub-1", "hub-2", "hub-3"} {
			led := shared.hubLeaderships(t, hub)
			shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), hub) })
			began := time.Now()
			answers := shared.timeFirstAnswers(t, began)
			value := hub + "-" + strconv.FormatUint(round, 10)
			times := make([]time.Duration, len(nodes))
			var g sync.WaitGroup
			for i, node := range nodes {
				name := faults.Name(node, "map", 6)
				if err := shared.putConfigMap(t.Context(), name, value); err != nil {
					t.Fatal(err)
				}
				g.Go(func() {
					shared.awaitValue(t, node, name, value)
					times[i] = time.Since(began)
				})
			}
			g.Wait()
			t.Logf("%s died, which led %v: these answered after %v; the next changes took %s", hub, led, answers(), times)
			all = append(all, times...)
			shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), hub) })
			shared.awaitSettled(t)
		}
	}
	slices.Sort(all)
	t.Logf("of %d changes: p50 %s, worst %s", len(all), all[len(all)/2].Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond))
}

// leaderRequests are requests that only a leader answers: of the stream, of the members' bucket, and of JetStream itself.
var leaderRequests = map[string]string{
	"stream": "STREAM.INFO." + subject.DesiredStream, "members": "STREAM.INFO.KV_" + subject.MembersBucket, "JetStream": "STREAM.LIST",
}

// hubLeaderships lists what a hub server leads.
func (r *testCluster) hubLeaderships(t *testing.T, hub string) (led []string) {
	t.Helper()
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	for name, stream := range map[string]string{"stream": subject.DesiredStream, "members": "KV_" + subject.MembersBucket} {
		s, err := js.Stream(t.Context(), stream)
		if err != nil {
			t.Fatal(err)
		}
		if c := s.CachedInfo().Cluster; c != nil && c.Leader == hub {
			led = append(led, name)
		}
	}
	slices.Sort(led)
	return led
}

// timeFirstAnswers starts sending the requests; wait returns the time from began to the first answer of each.
func (r *testCluster) timeFirstAnswers(t *testing.T, began time.Time) (wait func() map[string]time.Duration) {
	t.Helper()
	var mu sync.Mutex
	var g sync.WaitGroup
	took := map[string]time.Duration{}
	for name, subj := range leaderRequests {
		g.Go(func() {
			for t.Context().Err() == nil {
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				msg, err := r.nc.RequestWithContext(ctx, "$JS.API."+subj, nil)
				cancel()
				if err == nil && !strings.Contains(string(msg.Data), `"error"`) {
					mu.Lock()
					took[name] = time.Since(began).Round(100 * time.Millisecond)
					mu.Unlock()
					return
				}
				<-time.After(50 * time.Millisecond)
			}
		})
	}
	return func() map[string]time.Duration {
		g.Wait()
		return took
	}
}
