package suite_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/internal/devcluster"
)

// stopWindow is how long changes are measured around a stop: longer than lame duck mode takes.
const stopWindow = 40 * time.Second

// TestHubServerStop_ChangesArrive stops each hub server in turn, HUB_STOPS times by SIGTERM and as often in lame duck mode, while objects
// change. It logs how long the slowest change of each stop took.
func TestHubServerStop_ChangesArrive(t *testing.T) {
	rounds := envUint(t, "HUB_STOPS", 0)
	if rounds == 0 {
		t.Skip("a measurement: set HUB_STOPS to a number of rounds")
	}
	for name, sig := range map[string]syscall.Signal{"SIGTERM": syscall.SIGTERM, "lame duck": syscall.SIGUSR2} {
		t.Run(name, func(t *testing.T) {
			var worst []time.Duration
			for round := range rounds {
				for _, hub := range []string{"hub-1", "hub-2", "hub-3"} {
					worst = append(worst, shared.timeStop(t, hub, sig, strconv.FormatUint(round, 10)))
				}
			}
			slices.Sort(worst)
			t.Logf("slowest change of each of %d stops: p50 %s, worst %s", len(worst), worst[len(worst)/2], worst[len(worst)-1])
		})
	}
}

// timeStop stops a hub server by a signal and starts it again. It returns how long the slowest change around the stop took.
func (r *testCluster) timeStop(t *testing.T, hub string, sig syscall.Signal, label string) time.Duration {
	t.Helper()
	r.awaitSettled(t)
	led, pid := r.hubLeaderships(t, hub), r.cluster.PID(hub)
	window, stop := time.NewTimer(stopWindow/20), errgroup.Group{}
	stop.Go(func() error {
		<-window.C
		if err := syscall.Kill(pid, sig); err != nil {
			return fmt.Errorf("stop %s: %w", hub, err)
		}
		return nil
	})
	times := r.measureChanges(t, hub+sig.String()+label, stopWindow)
	if err := stop.Wait(); err != nil {
		t.Fatal(err)
	}
	worst := slices.Max(times).Round(time.Millisecond)
	t.Logf("%s stopped, which led %v: the slowest of %d changes took %s", hub, led, len(times), worst)
	r.eventually(t, hub+" has ended", time.Minute, func(context.Context) string {
		if r.isRunning(hub) {
			return hub + " runs"
		}
		return ""
	})
	r.mustCluster(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), hub) })
	return worst
}
