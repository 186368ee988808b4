package suite_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/faults"
)

// TestCloudcoreFailover_NoNodeWaits stops, resumes, kills and adds each cloudcore, and right after each of that changes an object of every
// gateway again and again: none may wait for longer than a takeover takes. The peer is away for 34 to 39 s. REPLICA_PAUSE is how
// long a cloudcore is stopped.
func TestCloudcoreFailover_NoNodeWaits(t *testing.T) {
	pause := 4 * time.Second
	if value := os.Getenv("REPLICA_PAUSE"); value != "" {
		var err error
		if pause, err = time.ParseDuration(value); err != nil {
			t.Fatal(err)
		}
	}
	shared.awaitSettled(t)
	for _, replica := range []string{"cloudcore-1", "cloudcore-2"} {
		for _, event := range []struct {
			name string
			call func(c *devcluster.Cluster) error
			last time.Duration
		}{
			{"paused", func(c *devcluster.Cluster) error { return c.Pause(t.Context(), replica) }, pause},
			{"resumed", func(c *devcluster.Cluster) error { return c.Resume(t.Context(), replica) }, 4 * time.Second},
			{"killed", func(c *devcluster.Cluster) error { return c.Kill(t.Context(), replica) }, 4 * time.Second},
			{"added", func(c *devcluster.Cluster) error { return c.Launch(t.Context(), replica) }, 4 * time.Second},
		} {
			shared.mustCluster(t, event.call)
			waits := shared.measureChanges(t, replica+event.name, event.last)
			slices.Sort(waits)
			worst := waits[len(waits)-1]
			t.Logf("%s %s: of %d changes p50 %s, worst %s", replica, event.name, len(waits),
				waits[len(waits)/2].Round(time.Millisecond), worst.Round(time.Millisecond))
			if worst > changeLimit {
				t.Errorf("a change waited for %s when %s was %s", worst.Round(time.Millisecond), replica, event.name)
			}
		}
		shared.awaitSettled(t)
	}
}

// changeLimit is the 2 s of the promise, and as much again for a machine that has other work.
const changeLimit = 4 * time.Second

// measureChanges changes one object of each gateway for a time, each change soon after the one before has arrived, and returns how long
// each took.
func (r *testCluster) measureChanges(t *testing.T, label string, d time.Duration) []time.Duration {
	t.Helper()
	times := make([][]time.Duration, len(nodes))
	var g errgroup.Group
	end := time.Now().Add(d)
	for i, node := range nodes {
		g.Go(func() error {
			name := faults.Name(node, "map", 7)
			for n := 0; n == 0 || time.Now().Before(end); n++ {
				began, value := time.Now(), fmt.Sprintf("%s-%d", label, n)
				if err := r.putConfigMap(t.Context(), name, value); err != nil {
					return err
				}
				if err := r.pollValue(t.Context(), node, name, value); err != nil {
					return err
				}
				times[i] = append(times[i], time.Since(began))
				<-time.After(changeInterval)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	return slices.Concat(times...)
}

// TestCloudcorePaused_LinksReconnect: a gateway whose link comes back is let in by any cloudcore, and asks any; to the hub one that
// is stopped is there for 10 to 15 s, and without the others' help the change waits for 14 to 33 s.
func TestCloudcorePaused_LinksReconnect(t *testing.T) {
	for _, replica := range []string{"cloudcore-1", "cloudcore-2"} {
		shared.awaitSettled(t)
		shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Pause(t.Context(), replica) })
		for _, node := range nodes {
			shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Reset(t.Context(), node) })
		}
		waits := shared.measureChanges(t, "beside "+replica, 0)
		t.Logf("%s stopped and all links reset: the changes took %v", replica, waits)
		if worst := slices.Max(waits); worst > linkLimit {
			t.Errorf("a change waited for %s while %s was stopped", worst.Round(time.Millisecond), replica)
		}
	}
	shared.awaitSettled(t)
}

// linkLimit is what the worst takes: 1.5 s until the stopped one is missed; or 3 s in which the hub waits for its word on a link, and then
// up to 2 s until that is dialled again. The rest is for a machine that has other work.
const linkLimit = 9 * time.Second

// TestAPIServerRestart_ChangesComeSoon: one that has just started answers its first watchers that it has no storage, or does not
// know their rights. With client-go alone each kind of object is then heard again up to half a minute later, by every cloudcore.
func TestAPIServerRestart_ChangesComeSoon(t *testing.T) {
	shared.awaitSettled(t)
	var all []time.Duration
	for i := range 4 {
		for _, part := range []string{"etcd", "apiserver"} {
			shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), part) })
		}
		for _, part := range []string{"apiserver", "etcd"} { // the storage comes last
			shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), part) })
			<-time.After(time.Second)
		}
		shared.eventually(t, "the apiserver is ready", waitTimeout, func(ctx context.Context) string {
			return errorText(shared.withCluster(func(c *devcluster.Cluster) error { return c.Ready(ctx, "apiserver") }))
		})
		waits := shared.measureChanges(t, fmt.Sprint("back ", i), 2*time.Second) // a watch that lives for less counts as failed
		t.Logf("after it was ready, of %d changes the slowest took %s", len(waits), slices.Max(waits).Round(time.Millisecond))
		all = append(all, waits...)
	}
	if worst := slices.Max(all); worst > watchLimit {
		t.Errorf("a change waited for %s after the apiserver was ready", worst.Round(time.Millisecond))
	}
	shared.awaitSettled(t)
}

// watchLimit is far more than a watch needs to begin again, and less than the third step back of client-go.
const watchLimit = 6 * time.Second
