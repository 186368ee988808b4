package membership

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
)

// memberClock drives a Members without a hub.
type memberClock struct {
	*Members
	now time.Time
	n   int
}

func newMemberClock(t *testing.T) *memberClock {
	t.Helper()
	return &memberClock{Members: New("a", nil, nil, zaptest.NewLogger(t)), now: time.Now()}
}

// deliverRefreshes delivers a refresh of each member; the own one is the newest that was begun.
func (c *memberClock) deliverRefreshes(members ...string) {
	for _, member := range members {
		c.n++
		value := time.Duration(c.n).String()
		if member == c.self {
			c.recordRefresh(ownRefresh{value: value, at: c.now})
		}
		c.observeRefresh(member, value, c.now)
	}
}

// A new watch begins with the last value of each entry: that of a replica that has died is no sign of life.
func TestMembers_RepeatedEntryIsNoSignOfLife(t *testing.T) {
	c := newMemberClock(t)
	c.stepMembers("a", "b")
	last := c.entries["b"]
	for range 10 {
		c.stepMembers("a")
	}
	if got := c.Live(); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("live %v after b was silent", got)
	}
	c.observeRefresh("b", last, c.now)
	if got := c.Live(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("live %v after the last entry of b was repeated", got)
	}
	c.stepMembers("a", "b")
	if got := c.Live(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("live %v after b was heard again", got)
	}
}

// advanceTime advances the time without any event in this process.
func (c *memberClock) advanceTime(d time.Duration) { c.now = c.now.Add(d) }

func (c *memberClock) stepMembers(members ...string) {
	c.advanceTime(memberRefreshInterval)
	c.deliverRefreshes(members...)
	c.evaluateLive(c.now)
}

func TestMembers_StoppedMemberGetsNewTerm(t *testing.T) {
	c := newMemberClock(t)
	mine, others := nodeOwnedBy(t, "a"), nodeOwnedBy(t, "b")
	c.stepMembers("b", "a")
	first := c.Term(mine)
	if first == 0 || c.Term(others) != 0 || !slices.Equal(c.Live(), []string{"a", "b"}) {
		t.Fatalf("term %d, live %v", first, c.Live())
	}
	for range 20 {
		c.stepMembers("a", "b")
	}
	if c.Term(mine) != first {
		t.Error("a new term, though nothing happened")
	}

	// Ten minutes stopped: the view stays, but it is not valid.
	changed := c.Changed()
	old := c.ownRefreshes[len(c.ownRefreshes)-1].value
	c.advanceTime(10 * time.Minute)
	if elapsedSince(c.lastRenewal, c.now) <= memberExpiry {
		t.Error("fresh after ten minutes of silence")
	}
	c.evaluateLive(c.now)
	c.observeRefresh("a", old, c.now) // an old message left in the socket
	c.evaluateLive(c.now)
	if elapsedSince(c.lastRenewal, c.now) <= memberExpiry {
		t.Error("an old refresh of our own counts as new")
	}
	c.deliverRefreshes("a")
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
		c.stepMembers("a")
	}
	if got := c.Live(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("live %v, though b is silent", got)
	}
}

func TestMembers_RegainedOwnershipIsNewTerm(t *testing.T) {
	c := newMemberClock(t)
	mine, both := nodeOwnedBy(t, "b"), nodeOwnedBy(t, "a") // "mine" while b is not live
	c.stepMembers("a")
	first, kept := c.Term(mine), c.Term(both)
	c.stepMembers("a", "b")
	if c.Term(mine) != 0 || c.Term(both) != kept {
		t.Fatalf("terms %d, %d with two members", c.Term(mine), c.Term(both))
	}
	for range 6 {
		c.stepMembers("a")
	}
	if again := c.Term(mine); again == first || again == 0 {
		t.Errorf("term %d after another member owned the node, %d before", again, first)
	}
	if c.Term(both) != kept {
		t.Errorf("term %d of a node that was ours all the time, %d before", c.Term(both), kept)
	}
	for i := range 3 * maxViews { // b joins and leaves: a term is never used again
		before := c.Term(mine)
		c.stepMembers("a", "b")
		c.removeMember("b", c.now)
		if again := c.Term(mine); again <= before {
			t.Fatalf("round %d: term %d after %d", i, again, before)
		}
	}
}

// A sleeping machine's monotonic clock stands still; the wall clock does not.
func TestElapsedSince_UsesTheLongerClock(t *testing.T) {
	now := time.Now()
	wall := now.Round(0).Add(-time.Hour) // without monotonic reading
	if got := elapsedSince(wall, now); got < time.Hour {
		t.Errorf("age %v", got)
	}
	if got := elapsedSince(now.Add(-time.Second), now); got != time.Second {
		t.Errorf("age %v", got)
	}
}

// A replica that stops without leaving is reported with its last known connections, which may be none; one that leaves is not.
func TestMembers_FailedPeerReportedWithConnections(t *testing.T) {
	c := newMemberClock(t)
	c.links = func() []Link { return []Link{{Server: "S1", Client: 7}} }
	own, err := c.nextRefresh(c.now)
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{own.value, c.now.Format(time.RFC3339Nano), "{", `{"links":7}`} {
		c.stepMembers("a")
		c.observeRefresh("stopped", value, c.now)
		c.observeRefresh("leaves", value, c.now)
		c.removeMember("leaves", c.now)
		for range 5 {
			c.stepMembers("a")
		}
		select {
		case gone := <-c.failedPeers:
			var said memberEntry
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
		case gone := <-c.failedPeers:
			t.Errorf("%q: told of %+v, too", value, gone)
		default:
		}
	}
}

// A replica that was stopped stays out until its Kubernetes cache is current, as long as another one serves; one that
// was alone, or is left alone, does not. The time that the hub takes for a refresh is no stop.
func TestMembers_StoppedReplicaCoolsDown(t *testing.T) {
	woken := func(t *testing.T, members ...string) *memberClock {
		t.Helper()
		c := newMemberClock(t)
		for range 3 {
			c.stepMembers(members...)
			if c.inCooldown(c.now) {
				t.Fatal("rests without a stop")
			}
		}
		c.advanceTime(10 * time.Minute)
		return c
	}
	// left returns how long the cooldown lasts, while refreshes of the others arrive for a time.
	left := func(c *memberClock, heard time.Duration, others ...string) time.Duration {
		woke := c.now
		for c.inCooldown(c.now) {
			c.advanceTime(memberRefreshInterval)
			if c.now.Sub(woke) <= heard {
				c.deliverRefreshes(others...)
			}
		}
		return c.now.Sub(woke)
	}
	if rest := left(woken(t, "a", "b"), time.Hour, "b"); rest < memberCooldown || rest > memberCooldown+memberRefreshInterval {
		t.Errorf("rests for %s beside another, want %s", rest, memberCooldown)
	}
	if rest := left(woken(t, "a", "b"), 0); rest > memberExpiry+memberRefreshInterval {
		t.Errorf("rests for %s though it hears nobody", rest)
	}
	if rest := left(woken(t, "a", "b"), 4*time.Second, "b"); rest > 4*time.Second+memberExpiry+memberRefreshInterval {
		t.Errorf("rests for %s though the other is silent after 4s", rest)
	}
	if rest := left(woken(t, "a"), time.Hour); rest != 0 {
		t.Errorf("rests for %s though it was alone", rest)
	}
	c := woken(t, "a", "b")
	c.lastRunAt = c.now // a refresh that took as long has just ended
	if rest := left(c, time.Hour, "b"); rest != 0 {
		t.Errorf("rests for %s after a slow refresh", rest)
	}
}
