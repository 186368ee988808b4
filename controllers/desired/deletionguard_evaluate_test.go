package desired_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
)

// These tests run the guard alone: a test sets what Kubernetes and the stream hold, and the time.

const settleTime = 5 * time.Second

func guardConfig() desired.Config {
	return desired.Config{ClusterEpoch: "one", Guard: desired.Guard{Share: 0.5, Minimum: 5, Settle: settleTime}}
}

func testPod(n int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint("p", n), UID: types.UID(fmt.Sprint("u", n))}}
}

func podKey(n int) wire.Key { return coreKey("pods", "n", fmt.Sprint("p", n)) }

// livePod returns the stream's message of a pod that was published without a deletion reason.
func livePod(n int) wire.Message {
	return wire.Message{Key: podKey(n), Op: wire.Apply, UID: fmt.Sprint("u", n), ClusterEpoch: "one", Time: time.Now()}
}

// podTombstone returns a pod's tombstone made at a time.
func podTombstone(n int, leaving wire.DeletionReason, at time.Time) wire.Message {
	m := livePod(n)
	m.Op, m.DeletionReason, m.Time = wire.Delete, leaving, at
	return m
}

// newGuardedNode returns a node for which the stream holds that many pods, and Kubernetes only those from missing on.
func newGuardedNode(cfg desired.Config, pods, missing int, more ...wire.Message) *desired.GuardHarness {
	g := desired.NewGuardHarness(cfg, nil)
	for n := range pods {
		more = append(more, livePod(n))
		if n >= missing {
			g.AddPod(testPod(n))
		}
	}
	g.SetPublished(more...)
	return g
}

// evaluateSettled evaluates twice, so that the losses have settled the second time, and returns the second result.
func evaluateSettled(t *testing.T, g *desired.GuardHarness, at time.Time) (isHeld bool) {
	t.Helper()
	if isHeld, later := g.Evaluate(at); isHeld || later <= 0 {
		return isHeld
	}
	isHeld, later := g.Evaluate(at.Add(settleTime))
	if later != 0 {
		t.Errorf("after the sweep has settled it is to be looked at %s later", later)
	}
	return isHeld
}

func lastHold(t *testing.T, g *desired.GuardHarness) wire.Hold {
	t.Helper()
	if len(g.Reports) == 0 || g.Reports[len(g.Reports)-1] == nil {
		t.Fatalf("told %v, no hold at the end", g.Reports)
	}
	return *g.Reports[len(g.Reports)-1]
}

func TestGuard_CountsUnexpectedLosses(t *testing.T) {
	now := time.Now()
	forced := func(n int) *corev1.Pod {
		p, none := testPod(n), int64(0)
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: now}, &none
		return p
	}
	foreign := func(n int) wire.Message {
		m := livePod(n)
		m.ClusterEpoch = "another"
		return m
	}
	with := func(word wire.DeletionReason, n int) wire.Message {
		m := livePod(n)
		m.DeletionReason = word
		return m
	}
	restored := func(since time.Duration) desired.Config {
		cfg := guardConfig()
		cfg.Restore = desired.Restore{Since: now.Add(-since), KeepFor: time.Hour}
		return cfg
	}
	var ago, long, gracefully, atOnce, copies []wire.Message
	for n := 20; n < 24; n++ {
		ago = append(ago, podTombstone(n, "", now.Add(-50*time.Second)))
		long = append(long, podTombstone(n, "", now.Add(-2*time.Minute)))
		gracefully = append(gracefully, podTombstone(n, wire.DeletionTerminating, now.Add(-time.Second)))
	}
	for n := 30; n < 36; n++ {
		atOnce, copies = append(atOnce, with(wire.DeletionWithoutGrace, n)), append(copies, with(wire.DeletionOfCopy, n))
	}
	off := guardConfig()
	off.Guard.Share = 0
	for name, tt := range map[string]struct {
		g             *desired.GuardHarness
		held          bool
		missing, pods int
		reason        wire.HoldReason
	}{
		"none":                           {g: newGuardedNode(guardConfig(), 8, 0)},
		"half":                           {g: newGuardedNode(guardConfig(), 12, 6)},
		"more than half":                 {g: newGuardedNode(guardConfig(), 11, 6), held: true, missing: 6, pods: 11, reason: wire.HoldMassDelete},
		"too few":                        {g: newGuardedNode(guardConfig(), 4, 4)},
		"with those of a minute":         {g: newGuardedNode(guardConfig(), 3, 1, ago...), held: true, missing: 1, pods: 3, reason: wire.HoldMassDelete},
		"those of a minute were live":    {g: newGuardedNode(guardConfig(), 8, 1, ago...)},
		"those of before do not count":   {g: newGuardedNode(guardConfig(), 3, 1, long...)},
		"nor those that ended in order":  {g: newGuardedNode(guardConfig(), 3, 1, gracefully...)},
		"pods without grace go":          {g: newGuardedNode(guardConfig(), 2, 2, atOnce...)},
		"others' pods are no pods":       {g: newGuardedNode(guardConfig(), 6, 4, copies...)},
		"off":                            {g: newGuardedNode(off, 8, 8)},
		"one after a restore":            {g: newGuardedNode(restored(time.Minute), 8, 0, foreign(9)), held: true, missing: 1, pods: 9, reason: wire.HoldRestored},
		"with the guard off":             {g: newGuardedNode(func() desired.Config { c := restored(time.Minute); c.Guard.Share = 0; return c }(), 8, 0, foreign(9)), held: true, missing: 1, pods: 9, reason: wire.HoldRestored},
		"long after a restore":           {g: newGuardedNode(restored(2*time.Hour), 1, 0, foreign(9), foreign(10), foreign(11), foreign(12), foreign(13))},
		"another history, not a restore": {g: newGuardedNode(guardConfig(), 0, 0, foreign(9), foreign(10), foreign(11), foreign(12), foreign(13)), held: true, missing: 5, pods: 5, reason: wire.HoldMassDelete},
		"in order after a restore":       {g: newGuardedNode(restored(time.Minute), 8, 0, func() wire.Message { m := foreign(9); m.DeletionReason = wire.DeletionTerminating; return m }())},
	} {
		t.Run(name, func(t *testing.T) {
			if got := evaluateSettled(t, tt.g, now); got != tt.held {
				t.Fatalf("held: %t", got)
			}
			if !tt.held {
				return
			}
			if h := lastHold(t, tt.g); h.Missing != tt.missing || h.Pods != tt.pods || h.Reason != tt.reason || len(h.MissingSample) != min(5, tt.missing) || !slices.IsSorted(h.MissingSample) {
				t.Errorf("hold %+v", h)
			}
		})
	}
	t.Run("nothing is waited for when it is off", func(t *testing.T) {
		if isHeld, later := newGuardedNode(off, 8, 8).Evaluate(now); isHeld || later != 0 {
			t.Errorf("held %t, again in %s", isHeld, later)
		}
	})
	t.Run("taken by force", func(t *testing.T) {
		g := newGuardedNode(guardConfig(), 8, 0)
		for n := range 6 {
			g.AddPod(forced(n)) // still there, for a moment
		}
		if !evaluateSettled(t, g, now) {
			t.Error("six of eight pods were deleted by force, and may go")
		}
	})
	t.Run("all of a node that is no edge node any more", func(t *testing.T) {
		g := newGuardedNode(guardConfig(), 8, 0)
		g.RemoveNode(true)
		if !evaluateSettled(t, g, now) {
			t.Error("nobody was asked")
		}
	})
	t.Run("none of a node that was taken away", func(t *testing.T) {
		g := newGuardedNode(guardConfig(), 8, 8)
		g.RemoveNode(false)
		if evaluateSettled(t, g, now) {
			t.Error("somebody who is gone is asked")
		}
	})
}

// A sweep is evaluated as one, when it has not grown for a while.
func TestGuard_WaitsForLossesToSettle(t *testing.T) {
	now := time.Now()
	g := newGuardedNode(guardConfig(), 8, 1)
	later := func(at time.Duration, want time.Duration) {
		t.Helper()
		if isHeld, later := g.Evaluate(now.Add(at)); isHeld || later != want {
			t.Errorf("at %s: held %t, again in %s, want %s", at, isHeld, later, want)
		}
	}
	later(0, settleTime)
	later(2*time.Second, 3*time.Second)
	for n := 1; n < 6; n++ {
		g.RemovePod(testPod(n))
	}
	later(4*time.Second, settleTime)
	later(9*time.Second-1, 1)
	if len(g.Reports) != 0 {
		t.Errorf("told %v of a sweep that goes on", g.Reports)
	}
	if isHeld, _ := g.Evaluate(now.Add(9 * time.Second)); !isHeld {
		t.Error("six of eight may go")
	}
	for n := range 6 {
		g.AddPod(testPod(n))
	}
	g.Evaluate(now.Add(10 * time.Second))
	for n := range 6 {
		g.RemovePod(testPod(n))
	}
	later(11*time.Second, settleTime) // the same pods again are another sweep
}

// While the history is not verified, vanished pods are kept, and the verification is retried.
func TestGuard_RetriesUntilHistoryVerified(t *testing.T) {
	now := time.Now()
	whole, since := false, time.Time{}
	cfg := guardConfig()
	cfg.Guard.Share = 0
	cfg.VerifiedSince = func(after time.Time) bool {
		since = after
		return whole
	}
	g := newGuardedNode(cfg, 8, 1)
	if isHeld, later := g.Evaluate(now); isHeld || later != settleTime {
		t.Errorf("held %t, again in %s", isHeld, later)
	}
	for _, at := range []time.Duration{settleTime, 10 * settleTime} {
		if isHeld, later := g.Evaluate(now.Add(at)); isHeld || later <= 0 || later > time.Second {
			t.Errorf("held %t, again in %s: nobody knows whether the history is whole", isHeld, later)
		}
		if !since.Equal(now) {
			t.Errorf("asked since %s, the pod vanished at %s", since, now)
		}
	}
	whole = true
	if isHeld, later := g.Evaluate(now.Add(11 * settleTime)); isHeld || later != 0 {
		t.Errorf("held %t, again in %s, though the history is whole", isHeld, later)
	}
}

// A hold is reported once, and again when it changes; when it ends, all deferred objects are enqueued, once.
func TestGuard_ReportsAndClearsHold(t *testing.T) {
	now := time.Now()
	g := newGuardedNode(guardConfig(), 11, 6)
	evaluateSettled(t, g, now)
	first := lastHold(t, g)
	g.Evaluate(now.Add(settleTime))
	if len(g.Reports) != 1 || g.Resyncs != 0 {
		t.Errorf("told %d times, asked %d times", len(g.Reports), g.Resyncs)
	}
	g.RemovePod(testPod(6))
	evaluateSettled(t, g, now.Add(2*settleTime))
	if second := lastHold(t, g); len(g.Reports) != 2 || second.Token == first.Token || second.Missing != 7 {
		t.Errorf("told %d times, the last %+v", len(g.Reports), second)
	}
	g.AddPod(testPod(20)) // published meanwhile
	more := []wire.Message{livePod(20)}
	for n := range 11 {
		more = append(more, livePod(n))
	}
	g.SetPublished(more...)
	g.Evaluate(now.Add(4 * settleTime))
	if third := lastHold(t, g); len(g.Reports) != 3 || third.Pods != 12 {
		t.Errorf("told %d times, the last %+v", len(g.Reports), third)
	}
	for n := range 7 {
		g.AddPod(testPod(n))
	}
	for range 2 {
		g.Evaluate(now.Add(5 * settleTime))
	}
	if len(g.Reports) != 4 || g.Reports[3] != nil || g.Resyncs != 1 {
		t.Errorf("told %v, asked %d times, want nil at the end, once", g.Reports, g.Resyncs)
	}
}

// A node without a hold is reported at the first evaluation, as there may be a hold written by another replica.
func TestGuard_ReportsNoHoldOnce(t *testing.T) {
	g := newGuardedNode(guardConfig(), 8, 0)
	for range 3 {
		g.Evaluate(time.Now())
	}
	if len(g.Reports) != 1 || g.Reports[0] != nil || g.Resyncs != 0 {
		t.Errorf("told %v, asked %d times", g.Reports, g.Resyncs)
	}
}

// A token allows the removal of exactly its pods, also if some of them were removed before; another token, or none,
// allows no removal.
func TestGuard_TokenConfirmsItsPodsOnly(t *testing.T) {
	now := time.Now()
	g := newGuardedNode(guardConfig(), 11, 6)
	evaluateSettled(t, g, now)
	is := lastHold(t, g).Token
	for _, word := range []string{"", "0123456789", strings.ToUpper(is) + "x"} {
		g.SetAnnotations(map[string]string{names.AnnotationConfirmDeletions: word})
		if isHeld, _ := g.Evaluate(now.Add(2 * settleTime)); !isHeld {
			t.Errorf("the word %q lets pods go", word)
		}
	}
	g.SetAnnotations(map[string]string{names.AnnotationConfirmDeletions: is})
	if isHeld, later := g.Evaluate(now.Add(2 * settleTime)); isHeld || later != 0 || g.Resyncs != 1 {
		t.Errorf("confirmed: held %t, again in %s, asked %d times", isHeld, later, g.Resyncs)
	}
	if may, word := g.DeletionAllowed(podKey(0)); !may || word.ConfirmationToken() != is {
		t.Errorf("confirmed: may go %t, with the word %q", may, word)
	}
	if _, word := g.DeletionAllowed(podKey(9)); word != "" {
		t.Errorf("a pod that was not confirmed goes with the word %q", word)
	}

	// Another replica starts when two of the six pods are already removed.
	messages := []wire.Message{
		podTombstone(0, wire.DeletionConfirmed(is), now), podTombstone(1, wire.DeletionConfirmed(is), now), podTombstone(30, wire.DeletionTerminating, now), podTombstone(31, wire.DeletionConfirmed("0123456789"), now),
	}
	for n := 2; n < 11; n++ {
		messages = append(messages, livePod(n))
	}
	g = desired.NewGuardHarness(func() desired.Config { c := guardConfig(); c.Guard.Minimum = 1; c.Guard.Share = 0.1; return c }(), map[string]string{names.AnnotationConfirmDeletions: is})
	for n := 6; n < 11; n++ {
		g.AddPod(testPod(n))
	}
	g.SetPublished(messages...)
	if evaluateSettled(t, g, now) {
		t.Error("the rest of what was confirmed is held by the next replica")
	}
	g.RemovePod(testPod(6))
	if !evaluateSettled(t, g, now.Add(3*settleTime)) {
		t.Error("the word of before lets another pod go")
	}
}

// A hold expires after its time, by the time recorded on the Node, and is evaluated then.
func TestGuard_HoldExpires(t *testing.T) {
	now := time.Now()
	cfg := guardConfig()
	cfg.Guard.After = time.Hour
	g := newGuardedNode(cfg, 11, 6)
	evaluateSettled(t, g, now)
	h := lastHold(t, g)
	told := func(h wire.Hold) {
		t.Helper()
		data, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		g.SetAnnotations(map[string]string{names.AnnotationHeldDeletions: string(data)})
	}
	at := now.Add(2 * settleTime)
	h.Since = at.Add(-30 * time.Minute)
	other := h
	other.Token, other.Since = "0123456789", at.Add(-2*time.Hour)
	told(other)
	if isHeld, _ := g.Evaluate(at); !isHeld {
		t.Error("the time of another hold ended this one")
	}
	undated := h
	undated.Since = time.Time{}
	told(undated)
	if isHeld, _ := g.Evaluate(at); !isHeld {
		t.Error("a hold without a time ended")
	}
	told(h)
	g.Delays = nil
	if isHeld, _ := g.Evaluate(at); !isHeld || !slices.Contains(g.Delays, 30*time.Minute) {
		t.Errorf("held %t, to be looked at in %v, want 30 minutes", isHeld, g.Delays)
	}
	if isHeld, _ := g.Evaluate(at.Add(30*time.Minute - 1)); !isHeld {
		t.Error("it ended before its time")
	}
	if isHeld, _ := g.Evaluate(at.Add(30 * time.Minute)); isHeld {
		t.Error("it did not end with its time")
	}
	if _, word := g.DeletionAllowed(podKey(0)); word.ConfirmationToken() != h.Token {
		t.Errorf("it went with the word %q", word)
	}
}

// A hold after a restore is evaluated again when the keep time is over.
func TestGuard_RestoreHoldIsReevaluated(t *testing.T) {
	cfg := guardConfig()
	cfg.Restore = desired.Restore{Since: time.Now(), KeepFor: time.Hour}
	m := livePod(9)
	m.ClusterEpoch = "another"
	g := newGuardedNode(cfg, 8, 0, m)
	if !evaluateSettled(t, g, time.Now()) {
		t.Fatal("not held")
	}
	if !slices.ContainsFunc(g.Delays, func(d time.Duration) bool { return d > 50*time.Minute && d <= time.Hour }) {
		t.Errorf("to be looked at in %v, want an hour", g.Delays)
	}
}

// A tombstone that may not be published now is deferred and counted, or retried; a removal that states its own reason does not wait.
func TestGuard_DefersTombstones(t *testing.T) {
	cfg := guardConfig()
	cfg.Guard.Settle = 20 * time.Millisecond
	g := newGuardedNode(cfg, 11, 6, podTombstone(20, wire.DeletionTerminating, time.Now()))
	if may, _ := g.DeletionAllowed(podKey(0)); may || len(g.Delays) != 1 || g.Delays[0] > cfg.Guard.Settle {
		t.Errorf("may go %t, again in %v", may, g.Delays)
	}
	if n, nodes := g.HeldCounts(); n != 0 || nodes != 0 {
		t.Errorf("%v tombstones of %v nodes wait before anything is held", n, nodes)
	}
	<-time.After(2 * cfg.Guard.Settle)
	for range 2 {
		for _, k := range []wire.Key{podKey(0), podKey(1), coreKey("configmaps", "n", "c")} {
			if may, _ := g.DeletionAllowed(k); may {
				t.Errorf("%s may go", k)
			}
		}
	}
	if n, nodes := g.HeldCounts(); n != 3 || nodes != 1 {
		t.Errorf("%v tombstones of %v nodes wait, want 3 of one", n, nodes)
	}
	if may, word := g.DeletionAllowed(podKey(20)); !may || word != wire.DeletionTerminating {
		t.Errorf("a pod that terminates may go: %t, with the word %q", may, word)
	}
	for n := range 6 {
		g.AddPod(testPod(n))
	}
	g.Reevaluate(coreKey("configmaps", "n", "c"))
	if n, _ := g.HeldCounts(); n != 3 {
		t.Error("a ConfigMap ended the hold")
	}
	g.Reevaluate(podKey(0))
	if n, nodes := g.HeldCounts(); n != 0 || nodes != 0 || g.Resyncs != 1 {
		t.Errorf("the pods are back, and %v tombstones of %v nodes wait; asked %d times", n, nodes, g.Resyncs)
	}
}
