package suite_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/test/faults"
)

// envUint reads one variable of `make soak`.
func envUint(t *testing.T, name string, or uint64) uint64 {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		return or
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestRounds runs rounds of random faults under a workload. After each round, everything must agree again and no history
// may contain a violation of a promise. SEED, FIRST and ROUNDS select the rounds, DURATION ends the run earlier.
func TestRounds(t *testing.T) {
	seed, first := envUint(t, "SEED", 1), envUint(t, "FIRST", 0)
	rounds := envUint(t, "ROUNDS", 3)
	deadline := time.Now().Add(365 * 24 * time.Hour)
	if value := os.Getenv("DURATION"); value != "" {
		d, err := time.ParseDuration(value)
		if err != nil {
			t.Fatalf("DURATION: %v", err)
		}
		deadline = time.Now().Add(d)
	}
	shared.awaitSettled(t)
	began, played := time.Now(), 0
	var down, up []time.Duration
	for n := first; n < first+rounds && time.Now().Before(deadline); n++ {
		ok := t.Run(strconv.FormatUint(n, 10), func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("replay this round:    make soak SEED=%d FIRST=%d ROUNDS=1", seed, n)
					t.Logf("replay from the first: make soak SEED=%d FIRST=%d ROUNDS=%d", seed, first, n-first+1)
				}
			}()
			shared.runRound(t, seed, n)
			took, heard := shared.checkPromptness(t, n)
			down, up = append(down, took...), append(up, heard...)
		})
		played++
		if !ok && os.Getenv("KEEP_GOING") == "" {
			break
		}
	}
	t.Logf("%d rounds of seed %d from %d in %s", played, seed, first, time.Since(began).Round(time.Second))
	for what, waits := range map[string][]time.Duration{"changes": down, "events": up} {
		if slices.Sort(waits); len(waits) != 0 {
			t.Logf("of %d %s after the rounds: p50 %s, p99 %s, worst %s", len(waits), what,
				waits[len(waits)/2].Round(time.Millisecond), waits[len(waits)*99/100].Round(time.Millisecond), waits[len(waits)-1].Round(time.Millisecond))
		}
	}
}

// checkPromptness makes some changes and an event of each gateway, one after the other, and fails the test if one is slow: in a healthy
// cluster no leftover of a fault may delay anything. It returns how long each change took to reach the gateway's disk, and each
// event to reach Kubernetes.
func (r *testCluster) checkPromptness(t *testing.T, round uint64) (down, up []time.Duration) {
	t.Helper()
	for i := range probeCount {
		for _, node := range nodes {
			took := r.timeChange(t, node, faults.Name(node, "map", 0), fmt.Sprintf("after round %d, %d", round, i))
			if took > promptLimit {
				t.Errorf("change %d of %s after the round took %s, more than %s", i, node, took.Round(time.Millisecond), promptLimit)
			}
			down = append(down, took)
			began, event := time.Now(), fmt.Sprintf("e%d", time.Now().UnixNano())
			if err := r.createEvent(t.Context(), node, event, 10); err != nil {
				t.Errorf("%s after the round: %v", node, err)
				continue
			}
			if err := pollUntil(t.Context(), func(ctx context.Context) error {
				_, err := r.kube.CoreV1().Events(faults.Namespace).Get(ctx, event, metav1.GetOptions{})
				return err
			}); err != nil {
				t.Errorf("event %d of %s after the round: %v", i, node, err)
			}
			if took = time.Since(began); took > promptLimit {
				t.Errorf("event %d of %s after the round took %s, more than %s", i, node, took.Round(time.Millisecond), promptLimit)
			}
			up = append(up, took)
		}
	}
	return down, up
}

const (
	// probeCount is the number of changes for each gateway: the hub serves two competing pulls in turn.
	probeCount = 3
	// promptLimit is far more than anything takes on a busy machine, and less than the wait for an unassigned message.
	promptLimit = 5 * time.Second
)

func (r *testCluster) runRound(t *testing.T, seed, n uint64) {
	t.Helper()
	random := faults.Random(seed, n)
	length := faults.Length(random)
	plan := faults.Plan(random, r.faultTargets(), length)
	var words []string
	for _, f := range plan {
		words = append(words, f.String())
	}
	t.Logf("plan: %s", strings.Join(words, ", "))
	w := &workload{rig: r, random: random}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var g errgroup.Group
	g.Go(func() error { return w.run(ctx) })
	begin := time.Now()
	for _, step := range faults.Steps(plan) {
		sleepUntil(begin.Add(step.At))
		if err := r.applyStep(ctx, step); err != nil {
			t.Logf("%s: %v", step.Fault, err) // such as a process that has ended by itself meanwhile
		}
	}
	sleepUntil(begin.Add(length))
	cancel()
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	done := time.Now()
	r.awaitSettled(t)
	t.Logf("%d changes, %d not confirmed; %.1fs of faults, settled after %.1fs",
		w.n.Load(), w.failed.Load(), done.Sub(begin).Seconds(), time.Since(done).Seconds())
}

// sleepUntil waits for a moment of the plan.
func sleepUntil(moment time.Time) { <-time.After(time.Until(moment)) }

// faultTargets returns the targets of a round.
func (r *testCluster) faultTargets() faults.Targets {
	rig := faults.Targets{Edges: nodes, SmallDisks: r.smallDisks, PowercutDisks: slices.Sorted(maps.Keys(r.powercutDisks))}
	for _, part := range r.cluster.Components() {
		if !slices.Contains(nodes, part) {
			rig.Processes = append(rig.Processes, part)
		}
	}
	for _, kind := range []string{"cloudcore-", "hub-"} {
		var group []string
		for _, part := range rig.Processes {
			if strings.HasPrefix(part, kind) {
				group = append(group, part)
			}
		}
		rig.Groups = append(rig.Groups, group)
	}
	return rig
}

// applyStep begins or ends one fault.
func (r *testCluster) applyStep(ctx context.Context, step faults.Step) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout) // the forwarder may be paused
	defer cancel()
	f := step.Fault
	switch {
	case f.Kind == faults.PowerLoss && !step.Ends:
		return r.powerOff(ctx, f.Target)
	case f.Kind == faults.Clone && !step.Ends:
		return r.startClone(ctx, f.Target)
	case f.Kind == faults.Clone:
		return r.endClone(ctx, f.Target)
	case f.Kind == faults.Wipe && !step.Ends:
		if err := r.withCluster(func(c *devcluster.Cluster) error { return c.Kill(ctx, f.Target) }); err != nil {
			return err
		}
		return r.wipeDisk(ctx, f.Target)
	}
	return r.withCluster(func(c *devcluster.Cluster) error {
		if step.Ends {
			return endFault(ctx, c, f)
		}
		return startFault(ctx, c, f)
	})
}

func startFault(ctx context.Context, c *devcluster.Cluster, f faults.Fault) error {
	switch f.Kind {
	case faults.Kill:
		return c.Kill(ctx, f.Target)
	case faults.Pause:
		return c.Pause(ctx, f.Target)
	case faults.SilentCut:
		return c.Cut(ctx, f.Target, false)
	case faults.LoudCut:
		return c.Cut(ctx, f.Target, true)
	case faults.CutUp:
		return c.CutOneWay(ctx, f.Target, true)
	case faults.CutDown:
		return c.CutOneWay(ctx, f.Target, false)
	case faults.Reset:
		return c.Reset(ctx, f.Target)
	case faults.Slow:
		return c.Shape(ctx, f.Target, f.Shape)
	case faults.DiskFull:
		return c.FillDisk(f.Target)
	default:
		return fmt.Errorf("nobody knows how to play %s", f.Kind)
	}
}

func endFault(ctx context.Context, c *devcluster.Cluster, f faults.Fault) error {
	switch f.Kind {
	case faults.Kill, faults.Wipe, faults.PowerLoss:
		return c.Launch(ctx, f.Target)
	case faults.Pause:
		return c.Resume(ctx, f.Target)
	case faults.Slow:
		return c.Shape(ctx, f.Target, perfectLink)
	case faults.DiskFull:
		return c.FreeDisk(f.Target)
	case faults.Reset:
		return nil
	default:
		return c.Heal(ctx, f.Target)
	}
}
