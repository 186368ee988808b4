package identity_test

import (
	"testing"
	"time"

	"github.com/frond-edge/frond/streams"
)

func TestWhatTheHubClosesIsCounted(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.replica("a", 0), w.replica("b", 1)
	thief := w.gateway("offends", "")
	thief.known()
	for _, r := range []*replica{a, b} {
		eventually(t, func() bool { return r.records.Of(thief.node) != nil }, "the record is not read")
	}
	count := func(label string) float64 {
		return a.counted(t, "frond_identity_offences_total", label) + b.counted(t, "frond_identity_offences_total", label)
	}
	for what, say := range map[string]string{
		"violation": "LS+ " + streams.InboxPrefix("another") + ".x",
		"too-large": "LMSG " + streams.BeatSubject(thief.node) + " 9000000",
	} {
		tries := 0
		eventually(t, func() bool { // the hub tells once, and whoever has just begun may not hear it
			tries++
			w.hub.Raw(1, thief.node, thief.pair).Send(say)
			return within(func() bool { return count(what) > 0 })
		}, what+" is not counted")
		t.Logf("%s: after %d links", what, tries)
		if a.told.offences(thief.node, what)+b.told.offences(thief.node, what) == 0 {
			t.Errorf("nobody was told of %s", what)
		}
	}
	if count(thief.node) < 2 {
		t.Error("they are not the thief's")
	}
	before := count(thief.node)
	w.hub.Raw(0, thief.node, thief.pair).Close()
	w.hub.Raw(0, thief.node, thief.pair).Send("LS+ " + streams.InboxPrefix("another") + ".x")
	eventually(t, func() bool { return count(thief.node) > before }, "the last one is not counted")
	if n := count(thief.node); n != before+1 {
		t.Errorf("an ordinary end is counted as well: %v", n-before)
	}
}

// within waits a second for a condition.
func within(holds func() bool) bool {
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) { //nolint:forbidigo // a metric has no event
		if holds() {
			return true
		}
	}
	return false
}

func TestALeafThatSaysItWereTheHubIsClosed(t *testing.T) {
	w := newWorld(t, 1)
	r := w.replica("a", 0)
	thief := w.gateway("claims", "")
	honest := thief.neighbour()
	thief.claims = true
	for _, g := range []*gateway{thief, honest} {
		g.known()
		g.dial(0)
	}
	honest.awaitAccount(0, honest.home())
	before := honest.connection(0)
	eventually(t, func() bool { return r.counted(t, "frond_identity_kicks_total", "claims-hub") > 0 }, "it is not closed")
	if honest.connection(0) != before {
		t.Error("so is its neighbour")
	}
}
