package suite_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/test/faults"
)

const (
	// changePeriod is the time between two changes of each node.
	changePeriod = 100 * time.Millisecond
	// lossObserved is how long changes go on after a server died: longer than an election, 4 to 9 s.
	lossObserved = 12 * time.Second
	// feltAfter is a pause that is shorter than any election and longer than a new connection.
	feltAfter = 3500 * time.Millisecond
)

// TestHubServerLoss_IsFeltByItsShare kills a server of the hub under a stream of changes for nodes of different partitions. The partitions that
// another server leads go on. It prints how long each node received nothing, which has more causes: the dead server may have had the node's
// link or consumer, or led JetStream itself or the members. With HUB_DEATHS it kills each server in turn, so many times.
func TestHubServerLoss_IsFeltByItsShare(t *testing.T) {
	rounds := envUint(t, "HUB_DEATHS", 0)
	victims := []string{"hub-2"}
	if rounds > 0 {
		victims = slices.Repeat([]string{"hub-1", "hub-2", "hub-3"}, int(rounds))
	}
	layout := layoutOf(shared.cluster)
	var all []time.Duration
	for _, hub := range victims {
		shared.awaitSettled(t)
		if len(layout.DesiredStreams()) > 1 {
			for i, node := range nodes {
				shared.moveLeader(t, layout.DesiredStream(node), fmt.Sprint("hub-", i+1))
			}
			// What all nodes share is not what this test is about.
			shared.moveLeader(t, "KV_members", "hub-"+strconv.Itoa(1+int(hub[len(hub)-1]-'0')%3))
		}
		roles, led := shared.rolesOf(t, hub), shared.partitionsLedBy(t, hub)
		pauses, streams := shared.timePauses(t, hub)
		felt := 0
		for _, node := range nodes {
			all = append(all, pauses[node])
			if pauses[node] > feltAfter {
				felt++
			}
		}
		for stream, pause := range streams {
			if pause > feltAfter && !slices.Contains(led, stream) {
				t.Errorf("%s died, which did not lead %s: it had no leader for %s", hub, stream, pause)
			}
		}
		t.Logf("%s died, which led %v: the streams paused %v; %d of %d nodes felt it, which paused %v; its roles for them %v", hub, led, streams, felt, len(nodes), pauses, roles)
	}
	slices.Sort(all)
	t.Logf("pauses: p50 %s, worst %s", all[len(all)/2], all[len(all)-1])
	shared.awaitSettled(t)
}

// moveLeader makes a server lead a stream.
func (r *testCluster) moveLeader(t *testing.T, stream, server string) {
	t.Helper()
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(map[string]any{"placement": map[string]string{"preferred": server}})
	if err != nil {
		t.Fatal(err)
	}
	r.eventually(t, server+" leads "+stream, waitTimeout, func(ctx context.Context) string {
		s, err := js.Stream(ctx, stream)
		if err != nil {
			return err.Error()
		}
		if leader := s.CachedInfo().Cluster.Leader; leader != server {
			_, err := r.nc.RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN."+stream, body)
			return fmt.Sprint(leader, " leads it: ", err)
		}
		return ""
	})
}

// partitionsLedBy lists the partitions that a hub server leads.
func (r *testCluster) partitionsLedBy(t *testing.T, hub string) (led []string) {
	t.Helper()
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range layoutOf(r.cluster).DesiredStreams() {
		stream, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if stream.CachedInfo().Cluster.Leader == hub {
			led = append(led, name)
		}
	}
	return led
}

// timeLeaders asks each partition's leader until it answers, and returns how long that took from now on.
func (r *testCluster) timeLeaders(ctx context.Context) map[string]time.Duration {
	var mu sync.Mutex
	var g sync.WaitGroup
	began, took := time.Now(), map[string]time.Duration{}
	for _, name := range layoutOf(r.cluster).DesiredStreams() {
		g.Go(func() {
			for ctx.Err() == nil {
				tctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
				msg, err := r.nc.RequestWithContext(tctx, "$JS.API.STREAM.INFO."+name, nil)
				cancel()
				if err == nil && !strings.Contains(string(msg.Data), `"error"`) {
					mu.Lock()
					took[name] = time.Since(began).Round(time.Millisecond)
					mu.Unlock()
					return
				}
				<-time.After(50 * time.Millisecond)
			}
		})
	}
	g.Wait()
	return took
}

// rolesOf lists what a hub server does for each node: it leads the node's partition, or has its consumer.
func (r *testCluster) rolesOf(t *testing.T, hub string) map[string][]string {
	t.Helper()
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	layout, roles := layoutOf(r.cluster), map[string][]string{}
	for _, node := range nodes {
		stream, err := js.Stream(t.Context(), layout.DesiredStream(node))
		if err != nil {
			t.Fatal(err)
		}
		if stream.CachedInfo().Cluster.Leader == hub {
			roles[node] = append(roles[node], "leader")
		}
		consumer, err := js.Consumer(t.Context(), layout.DesiredStream(node), wire.Escape(node))
		if err == nil && consumer.CachedInfo().Cluster.Leader == hub {
			roles[node] = append(roles[node], "consumer")
		}
	}
	return roles
}

// timePauses kills a server while each node's objects change. It returns each node's longest time without an ack, and the time until each
// partition's leader answered.
func (r *testCluster) timePauses(t *testing.T, hub string) (nodePauses, streamPauses map[string]time.Duration) {
	t.Helper()
	var mu sync.Mutex
	last, longest := map[string]time.Time{}, map[string]time.Duration{}
	measuring := false
	sub, err := r.nc.Subscribe("$JS.ACK.*.*.>", func(m *nats.Msg) { // the acks as they arrive in the hub's own account
		tokens := strings.Split(m.Subject, ".")
		node, err := wire.Unescape(tokens[3])
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); err == nil && strings.HasPrefix(tokens[2], "DESIRED-") {
			if before, seen := last[node]; seen && measuring {
				longest[node] = max(longest[node], now.Sub(before)).Round(time.Millisecond)
			}
			last[node] = now
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var g errgroup.Group
	for _, node := range nodes {
		g.Go(func() error {
			ticker := time.NewTicker(changePeriod)
			defer ticker.Stop()
			for n := 0; ; n++ {
				select {
				case <-ctx.Done():
					return nil
				case <-ticker.C:
				}
				if err := r.putConfigMap(ctx, faults.Name(node, "map", 6), fmt.Sprint(hub, "-", n)); err != nil && ctx.Err() == nil {
					return err
				}
			}
		})
	}
	r.eventually(t, "changes arrive at each node", waitTimeout, func(context.Context) string {
		mu.Lock()
		defer mu.Unlock()
		return strings.TrimPrefix(fmt.Sprint(len(nodes)-len(last), " do not"), "0 do not")
	})
	mu.Lock()
	measuring = true
	mu.Unlock()
	r.mustCluster(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), hub) })
	observed := time.After(lossObserved)
	streamPauses = r.timeLeaders(ctx)
	<-observed
	mu.Lock()
	for _, node := range nodes { // one that never came back
		longest[node] = max(longest[node], time.Since(last[node]).Round(time.Millisecond))
	}
	mu.Unlock()
	stop()
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	r.mustCluster(t, func(c *devcluster.Cluster) error { return c.Launch(context.WithoutCancel(t.Context()), hub) })
	mu.Lock()
	defer mu.Unlock()
	return longest, streamPauses
}
