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
	"github.com/frond-edge/frond/test/faults"
)

// TestCloudcoreFailover_NoNodeWaits stops, resumes, kills and adds each cloudcore. After each step it changes an object of every
// gateway repeatedly: no change may wait longer than a takeover takes. The peer is unavailable for 34 to 39 s. REPLICA_PAUSE is how
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

// changeLimit is the 2 s of the promise, twice, because the machine may be busy.
const changeLimit = 4 * time.Second

// measureChanges changes one object of each gateway for a time, each change soon after the previous one has arrived, and returns the
// duration of each.
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

// TestCloudcorePaused_LinksReconnect: any cloudcore admits a gateway whose link returns, and answers its attach. The hub considers a
// stopped cloudcore alive for 10 to 15 s; without the other cloudcores' help the change waits for 14 to 33 s.
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

// linkLimit is the worst case: 1.5 s until the stopped cloudcore is missed; or 3 s in which the hub waits for its decision on a link, and
// then up to 2 s until the link is dialled again. The rest allows for a busy machine.
const linkLimit = 9 * time.Second

// TestAPIServerRestart_ChangesComeSoon: an apiserver that has just started refuses its first watchers, because its storage or their
// RBAC rules are not loaded. With client-go alone every cloudcore resumes each watch up to half a minute later.
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

// watchLimit is far more than restarting a watch takes, and less than the third backoff step of client-go.
const watchLimit = 6 * time.Second
