package identity_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/hubtest"
)

func TestEnforcer_RevokedNodeIsClosedOnEachServer(t *testing.T) {
	w := newFixture(t, 3)
	a, b := w.startReplica("a", 0), w.startReplica("b", 1)
	var all []*testGateway
	for i := range 3 {
		g := w.newGateway(fmt.Sprintf("revoke-%d", i), "")
		g.writeRecord()
		all = append(all, g)
		g.startLeaf(i)
	}
	stays := w.newGateway("stays", "")
	stays.writeRecord()
	stays.startLeaf(2)
	for i, g := range append(all, stays) {
		g.awaitAccount(min(i, 2), g.cellAccount())
	}
	for i, g := range all {
		began := time.Now()
		g.revokeNode()
		g.awaitAccount(i, "")
		t.Logf("link on server %d closed after %s", i, time.Since(began).Round(time.Millisecond))
	}
	for _, r := range []*identityReplica{a, b} {
		for _, g := range all {
			waitUntil(t, func() bool { cut, revoked := r.notifier.notifiedOf(g.node); return cut > 0 && revoked == 1 }, "nobody was told of "+g.node)
		}
	}
	refused := func() float64 {
		return a.counterSum(t, "frond_identity_refusals_total", "revoked-key") + b.counterSum(t, "frond_identity_refusals_total", "revoked-key")
	}
	before := refused()
	waitUntil(t, func() bool { return refused() >= before+3 }, "they do not try again, or are not refused")
	thief := w.newGateway("revoke-9", w.createToken("thief1", nil)) // under another name, with a token
	thief.keyPair, thief.key = all[0].keyPair, all[0].key
	thief.startLeaf(0)
	before = refused()
	waitUntil(t, func() bool { return refused() >= before+3 }, "a revoked key is not refused under another name")
	for i, g := range append(all, thief) {
		if in := g.linkAccount(i % 3); in != "" {
			t.Errorf("%s is in %s", g.node, in)
		}
	}
	if in := stays.linkAccount(2); in != stays.cellAccount() {
		t.Errorf("who was not revoked is in %q", in)
	}
}

func TestEnforcer_ClosesLinksOlderThanAllReplicas(t *testing.T) {
	w := newFixture(t, 1)
	first := w.startReplica("first", 0)
	g := w.newGateway("older", "")
	other := g.sameCellGateway()
	for _, one := range []*testGateway{g, other} {
		one.writeRecord()
		one.startLeaf(0)
		one.awaitAccount(0, one.cellAccount())
	}
	stays := other.linkNumber(0)
	first.stop()
	g.revokeNode() // no replica sees it happen
	second := w.startReplica("second", 0)
	g.awaitAccount(0, "")
	waitUntil(t, func() bool { return second.counterSum(t, "frond_identity_refusals_total", "revoked-key") > 0 }, "it does not dial again")
	if got := other.linkNumber(0); got != stays {
		t.Errorf("the link of who was not revoked was %d, and is %d", stays, got)
	}
	other.revokeNode()
	other.awaitAccount(0, "")
}

func TestLinks_NewReplicaLearnsFromPeers(t *testing.T) {
	w := newFixture(t, 1)
	first := w.startReplica("first", 0)
	g := w.newGateway("learnt", "")
	other := g.sameCellGateway()
	g.writeRecord()
	other.writeRecord()
	g.startLeaf(0)
	g.awaitAccount(0, g.cellAccount())
	before := g.linkNumber(0)
	second := w.startReplica("second", 0)
	asker := w.hub.Connect(0, "callout")
	waitUntil(t, func() bool { return w.replicasKnowing(asker, g.node) == 2 }, "the second replica has not learnt")
	first.stop()

	// A node becomes suspect only now; earlier a replica would have asked about the cell's links for that reason.
	_, old := hubtest.NewKey(t)
	g.editSpec(func(s *identity.NodeIdentitySpec) { s.Revoked = []string{old} })
	other.startLeaf(0)
	other.awaitAccount(0, other.cellAccount())
	other.revokeNode()
	other.awaitAccount(0, "")
	waitUntil(t, func() bool { return second.counterSum(t, "frond_identity_refusals_total", "revoked-key") > 0 }, "it does not dial again")
	if n := second.counterSum(t, "frond_identity_kicks_total", "nobody-knows"); n != 0 || g.linkNumber(0) != before {
		t.Errorf("a link that both replicas knew was closed when the first one went: %v", n)
	}
}

// replicasKnowing returns the number of replicas that know a link of the node.
func (w *world) replicasKnowing(nc *nats.Conn, node string) (n int) {
	w.Helper()
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		w.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection is the test's
	if err := nc.PublishRequest("frond.identity.whose", inbox, []byte("[]")); err != nil {
		w.Fatal(err)
	}
	for {
		msg, err := sub.NextMsg(time.Second)
		if err != nil {
			return n
		}
		if strings.Contains(string(msg.Data), `"`+node+`"`) {
			n++
		}
	}
}

func TestCallout_AnyReplicaAnswers(t *testing.T) {
	w := newFixture(t, 1)
	a, b := w.startReplica("a", 0), w.startReplica("b", 0)
	answers := func(r *identityReplica) float64 { return r.counterSum(t, "frond_identity_answers_total", "cell") }
	g := w.newGateway("any-1", "")
	g.writeRecord()
	waitUntil(t, func() bool { return b.records.Lookup(g.node) != nil && a.records.Lookup(g.node) != nil }, "the records are not read")
	g.startLeaf(0)
	g.awaitAccount(0, g.cellAccount())
	kick := func() {
		t.Helper()
		z, err := w.hub.Server(0).Leafz(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, leaf := range z.Leafs {
			_ = w.hub.Server(0).DisconnectClientByID(leaf.ID) // a link that is gone is fine, too
		}
	}
	again := func() bool {
		kick()
		g.awaitAccount(0, g.cellAccount())
		return answers(a) > 0 && answers(b) > 0
	}
	waitUntil(t, again, "one replica answers all")

	a.stop()
	for range 3 {
		kick()
		g.awaitAccount(0, g.cellAccount())
	}

	b.stop()
	kick()
	waitUntil(t, func() bool { return g.linkAccount(0) == "" }, "in, though nobody answers")
	began := time.Now()
	w.startReplica("c", 0)
	g.awaitAccount(0, g.cellAccount())
	t.Logf("back %s after the first cloudcore", time.Since(began).Round(time.Millisecond))
}

func TestKeyConfirmer_PreviousKeyIsRefused(t *testing.T) {
	w := newFixture(t, 1)
	r := w.startReplica("a", 0)
	g := w.newGateway("rotate-1", "")
	g.writeRecord()
	g.editSpec(func(s *identity.NodeIdentitySpec) { s.Issued.Time = s.Issued.Add(-w.policy.KeyLifetime / 2) })
	g.startLeaf(0)
	g.awaitAccount(0, g.cellAccount())
	clone := w.newGateway("rotate-1", "") // of the disk image
	clone.keyPair, clone.key = g.keyPair, g.key

	before := g.newKey()
	var answer identity.Enrolment
	g.callCloud(g.node, identity.VerbRenew, g.renewRequest(before), &answer)
	wantGranted(t, answer)
	if n := r.counterSum(t, "frond_identity_kicks_total", "other-key"); n != 0 || g.linkAccount(0) != g.cellAccount() {
		t.Errorf("the link was closed by the renewal of its key")
	}
	g.stopLeaf()
	clone.startLeaf(0)
	clone.awaitAccount(0, g.cellAccount()) // the answer might have been lost
	g.startLeaf(0)                         // the hub keeps the newer of two leafs with one name
	waitUntil(t, func() bool { return g.readSpec().Previous == "" }, "the previous key goes on")
	kit.Succeeds(t, testTimeout, func() error {
		if n := r.counterSum(t, "frond_identity_refusals_total", "other-key"); n == 0 {
			return fmt.Errorf("the clone is not refused")
		}
		return nil
	})
	g.awaitAccount(0, subject.CellAccount(g.node, cellCount))
}
