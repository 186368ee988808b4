package identity_test

import (
	"testing"
	"time"

	"github.com/frond-edge/frond/streams/subject"
)

func TestViolationCounter_CountsHubDisconnects(t *testing.T) {
	w := newFixture(t, 2)
	a, b := w.startReplica("a", 0), w.startReplica("b", 1)
	thief := w.newGateway("offends", "")
	thief.writeRecord()
	for _, r := range []*identityReplica{a, b} {
		waitUntil(t, func() bool { return r.records.Lookup(thief.node) != nil }, "the record is not read")
	}
	count := func(label string) float64 {
		return a.counterSum(t, "frond_identity_offences_total", label) + b.counterSum(t, "frond_identity_offences_total", label)
	}
	for what, say := range map[string]string{
		"violation": "LS+ " + subject.InboxPrefix("another") + ".x",
		"too-large": "LMSG " + subject.HeartbeatSubject(thief.node) + " 9000000",
	} {
		tries := 0
		waitUntil(t, func() bool { // the hub reports once, and a subscriber that has just started may miss it
			tries++
			w.hub.ConnectRawLeaf(1, thief.node, thief.keyPair).Send(say)
			return holdsWithinSecond(func() bool { return count(what) > 0 })
		}, what+" is not counted")
		t.Logf("%s: after %d links", what, tries)
		if a.notifier.violationCount(thief.node, what)+b.notifier.violationCount(thief.node, what) == 0 {
			t.Errorf("nobody was told of %s", what)
		}
	}
	if count(thief.node) < 2 {
		t.Error("they are not the thief's")
	}
	before := count(thief.node)
	w.hub.ConnectRawLeaf(0, thief.node, thief.keyPair).Close()
	w.hub.ConnectRawLeaf(0, thief.node, thief.keyPair).Send("LS+ " + subject.InboxPrefix("another") + ".x")
	waitUntil(t, func() bool { return count(thief.node) > before }, "the last one is not counted")
	if n := count(thief.node); n != before+1 {
		t.Errorf("an ordinary end is counted as well: %v", n-before)
	}
}

// holdsWithinSecond waits a second for a condition.
func holdsWithinSecond(holds func() bool) bool {
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) { //nolint:forbidigo // a metric has no event
		if holds() {
			return true
		}
	}
	return false
}

func TestEnforcer_LeafClaimingHubIsClosed(t *testing.T) {
	w := newFixture(t, 1)
	r := w.startReplica("a", 0)
	thief := w.newGateway("claims", "")
	honest := thief.sameCellGateway()
	thief.claimsHub = true
	for _, g := range []*testGateway{thief, honest} {
		g.writeRecord()
		g.startLeaf(0)
	}
	honest.awaitAccount(0, honest.cellAccount())
	before := honest.linkNumber(0)
	waitUntil(t, func() bool { return r.counterSum(t, "frond_identity_kicks_total", "claims-hub") > 0 }, "it is not closed")
	if honest.linkNumber(0) != before {
		t.Error("so is its neighbour")
	}
}
