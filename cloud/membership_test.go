package cloud

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
)

// clock drives a Members without a hub.
type clock struct {
	*Members
	now time.Time
	n   int
}

func newClock(t *testing.T) *clock {
	t.Helper()
	return &clock{Members: NewMembers("a", nil, nil, zaptest.NewLogger(t)), now: time.Now()}
}

// hears lets a refresh of each member arrive, our own as the newest that was begun.
func (c *clock) hears(members ...string) {
	for _, member := range members {
		value := ""
		if member == c.self {
			c.n++
			value = time.Duration(c.n).String()
			c.begin(refresh{value: value, at: c.now})
		}
		c.refreshed(member, value, c.now)
	}
}

// pass lets time go by without anything happening in this process.
func (c *clock) pass(d time.Duration) { c.now = c.now.Add(d) }

func (c *clock) step(members ...string) {
	c.pass(memberRefresh)
	c.hears(members...)
	c.judge(c.now)
}

func TestAStoppedMemberOwnsAnewAndDoesNotThinkItIsAlone(t *testing.T) {
	c := newClock(t)
	mine, others := ownedBy(t, "a"), ownedBy(t, "b")
	c.step("b", "a")
	first := c.Term(mine)
	if first == 0 || c.Term(others) != 0 || !slices.Equal(c.Live(), []string{"a", "b"}) {
		t.Fatalf("term %d, live %v", first, c.Live())
	}
	for range 20 {
		c.step("a", "b")
	}
	if c.Term(mine) != first {
		t.Error("a new term, though nothing happened")
	}

	// Ten minutes stopped: the view stays, but it is worth nothing.
	changed := c.Changed()
	old := c.own[len(c.own)-1].value
	c.pass(10 * time.Minute)
	if age(c.heard, c.now) <= memberDead {
		t.Error("fresh after ten minutes of silence")
	}
	c.judge(c.now)
	c.refreshed("a", old, c.now) // what was in the socket since before
	c.judge(c.now)
	if age(c.heard, c.now) <= memberDead {
		t.Error("an old refresh of our own counts as new")
	}
	c.hears("a")
	if got := c.Live(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("live %v right after waking up: the others had no chance to be heard", got)
	}
	if again := c.Term(mine); again == first || again == 0 {
		t.Errorf("term %d as before: others may have owned the node meanwhile", again)
	}
	select {
	case <-changed:
	default:
		t.Error("nobody is told")
	}
	for range 5 {
		c.step("a")
	}
	if got := c.Live(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("live %v, though b is silent", got)
	}
}

func TestOwnershipThatLeftAndCameBackIsANewTerm(t *testing.T) {
	c := newClock(t)
	mine, both := ownedBy(t, "b"), ownedBy(t, "a") // "mine" while b is not there
	c.step("a")
	first, kept := c.Term(mine), c.Term(both)
	c.step("a", "b")
	if c.Term(mine) != 0 || c.Term(both) != kept {
		t.Fatalf("terms %d, %d with two members", c.Term(mine), c.Term(both))
	}
	for range 6 {
		c.step("a")
	}
	if again := c.Term(mine); again == first || again == 0 {
		t.Errorf("term %d after another member owned the node, %d before", again, first)
	}
	if c.Term(both) != kept {
		t.Errorf("term %d of a node that was ours all the time, %d before", c.Term(both), kept)
	}
	for i := range 3 * memberViews { // b comes and goes: a term is never used again
		before := c.Term(mine)
		c.step("a", "b")
		c.left("b", c.now)
		if again := c.Term(mine); again <= before {
			t.Fatalf("round %d: term %d after %d", i, again, before)
		}
	}
}

// A sleeping machine's monotonic clock stands still; the other one does not.
func TestAgeCountsTheLongerClock(t *testing.T) {
	now := time.Now()
	wall := now.Round(0).Add(-time.Hour) // without monotonic reading
	if got := age(wall, now); got < time.Hour {
		t.Errorf("age %v", got)
	}
	if got := age(now.Add(-time.Second), now); got != time.Second {
		t.Errorf("age %v", got)
	}
}

// A replica that stops without a word is told of with the connections that it named last, which may be none; one that leaves is not.
func TestWhoIsMissedIsToldOfWithItsConnections(t *testing.T) {
	c := newClock(t)
	c.links = func() []hubLink { return []hubLink{{Server: "S1", Client: 7}} }
	own, err := c.next(c.now)
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{own.value, c.now.Format(time.RFC3339Nano), "{", `{"links":7}`} {
		c.step("a")
		c.refreshed("stopped", value, c.now)
		c.refreshed("leaves", value, c.now)
		c.left("leaves", c.now)
		for range 5 {
			c.step("a")
		}
		select {
		case gone := <-c.missed:
			var said entry
			if err := json.Unmarshal([]byte(value), &said); err != nil {
				said.Links = nil
			}
			if gone.member != "stopped" || !slices.Equal(gone.links, said.Links) {
				t.Errorf("%q: told of %+v", value, gone)
			}
		default:
			t.Errorf("%q: not told of who stopped", value)
		}
		select {
		case gone := <-c.missed:
			t.Errorf("%q: told of %+v, too", value, gone)
		default:
		}
	}
}

// A replica that was stopped stays away until it knows Kubernetes again, as long as another one serves; one that was alone, or is left
// alone, does not, and how long the hub takes for a refresh is no stop.
func TestAReplicaThatWasStoppedRestsWhileOthersServe(t *testing.T) {
	woken := func(t *testing.T, members ...string) *clock {
		t.Helper()
		c := newClock(t)
		for range 3 {
			c.step(members...)
			if c.rests(c.now) {
				t.Fatal("rests without a stop")
			}
		}
		c.pass(10 * time.Minute)
		return c
	}
	// left is how long it rests, while the others are heard for a time.
	left := func(c *clock, heard time.Duration, others ...string) time.Duration {
		woke := c.now
		for c.rests(c.now) {
			c.pass(memberRefresh)
			if c.now.Sub(woke) <= heard {
				c.hears(others...)
			}
		}
		return c.now.Sub(woke)
	}
	if rest := left(woken(t, "a", "b"), time.Hour, "b"); rest < memberRest || rest > memberRest+memberRefresh {
		t.Errorf("rests for %s beside another, want %s", rest, memberRest)
	}
	if rest := left(woken(t, "a", "b"), 0); rest > memberDead+memberRefresh {
		t.Errorf("rests for %s though it hears nobody", rest)
	}
	if rest := left(woken(t, "a", "b"), 4*time.Second, "b"); rest > 4*time.Second+memberDead+memberRefresh {
		t.Errorf("rests for %s though the other is silent after 4s", rest)
	}
	if rest := left(woken(t, "a"), time.Hour); rest != 0 {
		t.Errorf("rests for %s though it was alone", rest)
	}
	c := woken(t, "a", "b")
	c.ran = c.now // a refresh that took as long has just ended
	if rest := left(c, time.Hour, "b"); rest != 0 {
		t.Errorf("rests for %s after a slow refresh", rest)
	}
}
