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

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
)

// The guard alone: a test says what Kubernetes and the stream hold, and when it is.

const settle = 5 * time.Second

func judged() desired.Config {
	return desired.Config{ClusterEpoch: "one", Guard: desired.Guard{Share: 0.5, Minimum: 5, Settle: settle}}
}

func pod(n int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint("p", n), UID: types.UID(fmt.Sprint("u", n))}}
}

func podKey(n int) wire.Key { return key("pods", "n", fmt.Sprint("p", n)) }

// held is what the stream holds of a pod that was published for good.
func held(n int) wire.Message {
	return wire.Message{Key: podKey(n), Op: wire.Apply, UID: fmt.Sprint("u", n), ClusterEpoch: "one", Time: time.Now()}
}

// went is a pod's tombstone of a time.
func went(n int, leaving wire.Leaving, at time.Time) wire.Message {
	m := held(n)
	m.Op, m.Leaving, m.Time = wire.Delete, leaving, at
	return m
}

// guarded is a node of which the stream holds so many pods, and Kubernetes only those from missing on.
func guarded(cfg desired.Config, pods, missing int, more ...wire.Message) *desired.Guarded {
	g := desired.NewGuarded(cfg, nil)
	for n := range pods {
		more = append(more, held(n))
		if n >= missing {
			g.Exists(pod(n))
		}
	}
	g.Holds(more...)
	return g
}

// settled judges twice, so that the losses have settled the second time, and returns what it says then.
func settled(t *testing.T, g *desired.Guarded, at time.Time) (isHeld bool) {
	t.Helper()
	if isHeld, later := g.Judge(at); isHeld || later <= 0 {
		return isHeld
	}
	isHeld, later := g.Judge(at.Add(settle))
	if later != 0 {
		t.Errorf("after the sweep has settled it is to be looked at %s later", later)
	}
	return isHeld
}

func hold(t *testing.T, g *desired.Guarded) wire.Hold {
	t.Helper()
	if len(g.Told) == 0 || g.Told[len(g.Told)-1] == nil {
		t.Fatalf("told %v, no hold at the end", g.Told)
	}
	return *g.Told[len(g.Told)-1]
}

func TestJudgeCountsTheRightPods(t *testing.T) {
	now := time.Now()
	forced := func(n int) *corev1.Pod {
		p, none := pod(n), int64(0)
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: now}, &none
		return p
	}
	foreign := func(n int) wire.Message {
		m := held(n)
		m.ClusterEpoch = "another"
		return m
	}
	with := func(word wire.Leaving, n int) wire.Message {
		m := held(n)
		m.Leaving = word
		return m
	}
	restored := func(since time.Duration) desired.Config {
		cfg := judged()
		cfg.Restore = desired.Restore{Since: now.Add(-since), KeepFor: time.Hour}
		return cfg
	}
	var ago, long, gracefully, atOnce, copies []wire.Message
	for n := 20; n < 24; n++ {
		ago = append(ago, went(n, "", now.Add(-50*time.Second)))
		long = append(long, went(n, "", now.Add(-2*time.Minute)))
		gracefully = append(gracefully, went(n, wire.Terminating, now.Add(-time.Second)))
	}
	for n := 30; n < 36; n++ {
		atOnce, copies = append(atOnce, with(wire.AtOnce, n)), append(copies, with(wire.Copy, n))
	}
	off := judged()
	off.Guard.Share = 0
	for name, tt := range map[string]struct {
		g             *desired.Guarded
		held          bool
		missing, pods int
		reason        wire.HoldReason
	}{
		"none":                           {g: guarded(judged(), 8, 0)},
		"half":                           {g: guarded(judged(), 12, 6)},
		"more than half":                 {g: guarded(judged(), 11, 6), held: true, missing: 6, pods: 11, reason: wire.HoldMassDelete},
		"too few":                        {g: guarded(judged(), 4, 4)},
		"with those of a minute":         {g: guarded(judged(), 3, 1, ago...), held: true, missing: 1, pods: 3, reason: wire.HoldMassDelete},
		"those of a minute were live":    {g: guarded(judged(), 8, 1, ago...)},
		"those of before do not count":   {g: guarded(judged(), 3, 1, long...)},
		"nor those that ended in order":  {g: guarded(judged(), 3, 1, gracefully...)},
		"pods without grace go":          {g: guarded(judged(), 2, 2, atOnce...)},
		"others' pods are no pods":       {g: guarded(judged(), 6, 4, copies...)},
		"off":                            {g: guarded(off, 8, 8)},
		"one after a restore":            {g: guarded(restored(time.Minute), 8, 0, foreign(9)), held: true, missing: 1, pods: 9, reason: wire.HoldRestored},
		"with the guard off":             {g: guarded(func() desired.Config { c := restored(time.Minute); c.Guard.Share = 0; return c }(), 8, 0, foreign(9)), held: true, missing: 1, pods: 9, reason: wire.HoldRestored},
		"long after a restore":           {g: guarded(restored(2*time.Hour), 1, 0, foreign(9), foreign(10), foreign(11), foreign(12), foreign(13))},
		"another history, not a restore": {g: guarded(judged(), 0, 0, foreign(9), foreign(10), foreign(11), foreign(12), foreign(13)), held: true, missing: 5, pods: 5, reason: wire.HoldMassDelete},
		"in order after a restore":       {g: guarded(restored(time.Minute), 8, 0, func() wire.Message { m := foreign(9); m.Leaving = wire.Terminating; return m }())},
	} {
		t.Run(name, func(t *testing.T) {
			if got := settled(t, tt.g, now); got != tt.held {
				t.Fatalf("held: %t", got)
			}
			if !tt.held {
				return
			}
			if h := hold(t, tt.g); h.Missing != tt.missing || h.Pods != tt.pods || h.Reason != tt.reason || len(h.Some) != min(5, tt.missing) || !slices.IsSorted(h.Some) {
				t.Errorf("hold %+v", h)
			}
		})
	}
	t.Run("nothing is waited for when it is off", func(t *testing.T) {
		if isHeld, later := guarded(off, 8, 8).Judge(now); isHeld || later != 0 {
			t.Errorf("held %t, again in %s", isHeld, later)
		}
	})
	t.Run("taken by force", func(t *testing.T) {
		g := guarded(judged(), 8, 0)
		for n := range 6 {
			g.Exists(forced(n)) // still there, for a moment
		}
		if !settled(t, g, now) {
			t.Error("six of eight pods were deleted by force, and may go")
		}
	})
	t.Run("all of a node that is no edge node any more", func(t *testing.T) {
		g := guarded(judged(), 8, 0)
		g.Gone(true)
		if !settled(t, g, now) {
			t.Error("nobody was asked")
		}
	})
	t.Run("none of a node that was taken away", func(t *testing.T) {
		g := guarded(judged(), 8, 8)
		g.Gone(false)
		if settled(t, g, now) {
			t.Error("somebody who is gone is asked")
		}
	})
}

// A sweep is judged when it has not grown for a while, as one.
func TestJudgeWaitsForASweepToSettle(t *testing.T) {
	now := time.Now()
	g := guarded(judged(), 8, 1)
	later := func(at time.Duration, want time.Duration) {
		t.Helper()
		if isHeld, later := g.Judge(now.Add(at)); isHeld || later != want {
			t.Errorf("at %s: held %t, again in %s, want %s", at, isHeld, later, want)
		}
	}
	later(0, settle)
	later(2*time.Second, 3*time.Second)
	for n := 1; n < 6; n++ {
		g.Missing(pod(n))
	}
	later(4*time.Second, settle)
	later(9*time.Second-1, 1)
	if len(g.Told) != 0 {
		t.Errorf("told %v of a sweep that goes on", g.Told)
	}
	if isHeld, _ := g.Judge(now.Add(9 * time.Second)); !isHeld {
		t.Error("six of eight may go")
	}
	for n := range 6 {
		g.Exists(pod(n))
	}
	g.Judge(now.Add(10 * time.Second))
	for n := range 6 {
		g.Missing(pod(n))
	}
	later(11*time.Second, settle) // the same pods again are another sweep
}

// While it is not known whether the history is whole, what vanished stays, and it is asked again and again.
func TestJudgeWaitsForTheHistory(t *testing.T) {
	now := time.Now()
	whole, since := false, time.Time{}
	cfg := judged()
	cfg.Guard.Share = 0
	cfg.Unbroken = func(after time.Time) bool {
		since = after
		return whole
	}
	g := guarded(cfg, 8, 1)
	if isHeld, later := g.Judge(now); isHeld || later != settle {
		t.Errorf("held %t, again in %s", isHeld, later)
	}
	for _, at := range []time.Duration{settle, 10 * settle} {
		if isHeld, later := g.Judge(now.Add(at)); isHeld || later <= 0 || later > time.Second {
			t.Errorf("held %t, again in %s: nobody knows whether the history is whole", isHeld, later)
		}
		if !since.Equal(now) {
			t.Errorf("asked since %s, the pod vanished at %s", since, now)
		}
	}
	whole = true
	if isHeld, later := g.Judge(now.Add(11 * settle)); isHeld || later != 0 {
		t.Errorf("held %t, again in %s, though the history is whole", isHeld, later)
	}
}

// What is held is told once, and again when it is another; when it ends, all that waited is asked for, once.
func TestAHoldIsToldAndLifted(t *testing.T) {
	now := time.Now()
	g := guarded(judged(), 11, 6)
	settled(t, g, now)
	first := hold(t, g)
	g.Judge(now.Add(settle))
	if len(g.Told) != 1 || g.Asked != 0 {
		t.Errorf("told %d times, asked %d times", len(g.Told), g.Asked)
	}
	g.Missing(pod(6))
	settled(t, g, now.Add(2*settle))
	if second := hold(t, g); len(g.Told) != 2 || second.Token == first.Token || second.Missing != 7 {
		t.Errorf("told %d times, the last %+v", len(g.Told), second)
	}
	g.Exists(pod(20)) // published meanwhile
	more := []wire.Message{held(20)}
	for n := range 11 {
		more = append(more, held(n))
	}
	g.Holds(more...)
	g.Judge(now.Add(4 * settle))
	if third := hold(t, g); len(g.Told) != 3 || third.Pods != 12 {
		t.Errorf("told %d times, the last %+v", len(g.Told), third)
	}
	for n := range 7 {
		g.Exists(pod(n))
	}
	for range 2 {
		g.Judge(now.Add(5 * settle))
	}
	if len(g.Told) != 4 || g.Told[3] != nil || g.Asked != 1 {
		t.Errorf("told %v, asked %d times, want nil at the end, once", g.Told, g.Asked)
	}
}

// A node of which nothing is held is told so at the first look, as there may be a word of another replica about it.
func TestNoHoldIsToldOnce(t *testing.T) {
	g := guarded(judged(), 8, 0)
	for range 3 {
		g.Judge(time.Now())
	}
	if len(g.Told) != 1 || g.Told[0] != nil || g.Asked != 0 {
		t.Errorf("told %v, asked %d times", g.Told, g.Asked)
	}
}

// A word lets exactly those go that it names, also when some of them went before; another word, or none, lets nobody.
func TestAWordLetsGoWhatItNames(t *testing.T) {
	now := time.Now()
	g := guarded(judged(), 11, 6)
	settled(t, g, now)
	is := hold(t, g).Token
	for _, word := range []string{"", "0123456789", strings.ToUpper(is) + "x"} {
		g.Node(map[string]string{wire.ConfirmAnnotation: word})
		if isHeld, _ := g.Judge(now.Add(2 * settle)); !isHeld {
			t.Errorf("the word %q lets pods go", word)
		}
	}
	g.Node(map[string]string{wire.ConfirmAnnotation: is})
	if isHeld, later := g.Judge(now.Add(2 * settle)); isHeld || later != 0 || g.Asked != 1 {
		t.Errorf("confirmed: held %t, again in %s, asked %d times", isHeld, later, g.Asked)
	}
	if may, word := g.May(podKey(0)); !may || word.Confirmation() != is {
		t.Errorf("confirmed: may go %t, with the word %q", may, word)
	}
	if _, word := g.May(podKey(9)); word != "" {
		t.Errorf("a pod that was not confirmed goes with the word %q", word)
	}

	// Another replica begins when two of the six are gone already.
	messages := []wire.Message{
		went(0, wire.Confirmed(is), now), went(1, wire.Confirmed(is), now), went(30, wire.Terminating, now), went(31, wire.Confirmed("0123456789"), now),
	}
	for n := 2; n < 11; n++ {
		messages = append(messages, held(n))
	}
	g = desired.NewGuarded(func() desired.Config { c := judged(); c.Guard.Minimum = 1; c.Guard.Share = 0.1; return c }(), map[string]string{wire.ConfirmAnnotation: is})
	for n := 6; n < 11; n++ {
		g.Exists(pod(n))
	}
	g.Holds(messages...)
	if settled(t, g, now) {
		t.Error("the rest of what was confirmed is held by the next replica")
	}
	g.Missing(pod(6))
	if !settled(t, g, now.Add(3*settle)) {
		t.Error("the word of before lets another pod go")
	}
}

// A hold ends by itself after its time, by the clock that stands on the Node, and is looked at then.
func TestAHoldExpires(t *testing.T) {
	now := time.Now()
	cfg := judged()
	cfg.Guard.After = time.Hour
	g := guarded(cfg, 11, 6)
	settled(t, g, now)
	h := hold(t, g)
	told := func(h wire.Hold) {
		t.Helper()
		data, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		g.Node(map[string]string{wire.HeldAnnotation: string(data)})
	}
	at := now.Add(2 * settle)
	h.Since = at.Add(-30 * time.Minute)
	other := h
	other.Token, other.Since = "0123456789", at.Add(-2*time.Hour)
	told(other)
	if isHeld, _ := g.Judge(at); !isHeld {
		t.Error("the time of another hold ended this one")
	}
	undated := h
	undated.Since = time.Time{}
	told(undated)
	if isHeld, _ := g.Judge(at); !isHeld {
		t.Error("a hold without a time ended")
	}
	told(h)
	g.Later = nil
	if isHeld, _ := g.Judge(at); !isHeld || !slices.Contains(g.Later, 30*time.Minute) {
		t.Errorf("held %t, to be looked at in %v, want 30 minutes", isHeld, g.Later)
	}
	if isHeld, _ := g.Judge(at.Add(30*time.Minute - 1)); !isHeld {
		t.Error("it ended before its time")
	}
	if isHeld, _ := g.Judge(at.Add(30 * time.Minute)); isHeld {
		t.Error("it did not end with its time")
	}
	if _, word := g.May(podKey(0)); word.Confirmation() != h.Token {
		t.Errorf("it went with the word %q", word)
	}
}

// What is held after a restore is looked at again when the time for that is over.
func TestAHoldOfARestoreIsLookedAtAgain(t *testing.T) {
	cfg := judged()
	cfg.Restore = desired.Restore{Since: time.Now(), KeepFor: time.Hour}
	m := held(9)
	m.ClusterEpoch = "another"
	g := guarded(cfg, 8, 0, m)
	if !settled(t, g, time.Now()) {
		t.Fatal("not held")
	}
	if !slices.ContainsFunc(g.Later, func(d time.Duration) bool { return d > 50*time.Minute && d <= time.Hour }) {
		t.Errorf("to be looked at in %v, want an hour", g.Later)
	}
}

// A tombstone that may not go now waits and is counted, or comes again; what says by itself that it goes does not wait for anything.
func TestATombstoneWaits(t *testing.T) {
	cfg := judged()
	cfg.Guard.Settle = 20 * time.Millisecond
	g := guarded(cfg, 11, 6, went(20, wire.Terminating, time.Now()))
	if may, _ := g.May(podKey(0)); may || len(g.Later) != 1 || g.Later[0] > cfg.Guard.Settle {
		t.Errorf("may go %t, again in %v", may, g.Later)
	}
	if n, nodes := g.Waiting(); n != 0 || nodes != 0 {
		t.Errorf("%v tombstones of %v nodes wait before anything is held", n, nodes)
	}
	<-time.After(2 * cfg.Guard.Settle)
	for range 2 {
		for _, k := range []wire.Key{podKey(0), podKey(1), key("configmaps", "n", "c")} {
			if may, _ := g.May(k); may {
				t.Errorf("%s may go", k)
			}
		}
	}
	if n, nodes := g.Waiting(); n != 3 || nodes != 1 {
		t.Errorf("%v tombstones of %v nodes wait, want 3 of one", n, nodes)
	}
	if may, word := g.May(podKey(20)); !may || word != wire.Terminating {
		t.Errorf("a pod that terminates may go: %t, with the word %q", may, word)
	}
	for n := range 6 {
		g.Exists(pod(n))
	}
	g.Review(key("configmaps", "n", "c"))
	if n, _ := g.Waiting(); n != 3 {
		t.Error("a ConfigMap ended the hold")
	}
	g.Review(podKey(0))
	if n, nodes := g.Waiting(); n != 0 || nodes != 0 || g.Asked != 1 {
		t.Errorf("the pods are back, and %v tombstones of %v nodes wait; asked %d times", n, nodes, g.Asked)
	}
}
