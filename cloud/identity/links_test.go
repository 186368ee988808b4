package identity_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/internal/hubconf/hubtest"
	"github.com/frond-edge/frond/internal/kubetest"
	"github.com/frond-edge/frond/streams"
)

func TestARevokedNodeIsClosedOnEachServerAndStaysOut(t *testing.T) {
	w := newWorld(t, 3)
	a, b := w.replica("a", 0), w.replica("b", 1)
	var all []*gateway
	for i := range 3 {
		g := w.gateway(fmt.Sprintf("revoke-%d", i), "")
		g.known()
		all = append(all, g)
		g.dial(i)
	}
	stays := w.gateway("stays", "")
	stays.known()
	stays.dial(2)
	for i, g := range append(all, stays) {
		g.awaitAccount(min(i, 2), g.home())
	}
	for i, g := range all {
		began := time.Now()
		g.revoke()
		g.awaitAccount(i, "")
		t.Logf("link on server %d closed after %s", i, time.Since(began).Round(time.Millisecond))
	}
	for _, r := range []*replica{a, b} {
		for _, g := range all {
			eventually(t, func() bool { cut, revoked := r.told.of(g.node); return cut > 0 && revoked == 1 }, "nobody was told of "+g.node)
		}
	}
	refused := func() float64 {
		return a.counted(t, "frond_identity_refusals_total", "revoked-key") + b.counted(t, "frond_identity_refusals_total", "revoked-key")
	}
	before := refused()
	eventually(t, func() bool { return refused() >= before+3 }, "they do not try again, or are not refused")
	thief := w.gateway("revoke-9", w.token("thief1", nil)) // under another name, with a token
	thief.pair, thief.key = all[0].pair, all[0].key
	thief.dial(0)
	before = refused()
	eventually(t, func() bool { return refused() >= before+3 }, "a revoked key is not refused under another name")
	for i, g := range append(all, thief) {
		if in := g.account(i % 3); in != "" {
			t.Errorf("%s is in %s", g.node, in)
		}
	}
	if in := stays.account(2); in != stays.home() {
		t.Errorf("who was not revoked is in %q", in)
	}
}

func TestALinkOfBeforeAllReplicasIsClosedToo(t *testing.T) {
	w := newWorld(t, 1)
	first := w.replica("first", 0)
	g := w.gateway("older", "")
	other := g.neighbour()
	for _, one := range []*gateway{g, other} {
		one.known()
		one.dial(0)
		one.awaitAccount(0, one.home())
	}
	stays := other.connection(0)
	first.stop()
	g.revoke() // nobody sees it happen
	second := w.replica("second", 0)
	g.awaitAccount(0, "")
	eventually(t, func() bool { return second.counted(t, "frond_identity_refusals_total", "revoked-key") > 0 }, "it does not dial again")
	if got := other.connection(0); got != stays {
		t.Errorf("the link of who was not revoked was %d, and is %d", stays, got)
	}
	other.revoke()
	other.awaitAccount(0, "")
}

func TestAReplicaLearnsWhatTheOthersKnow(t *testing.T) {
	w := newWorld(t, 1)
	first := w.replica("first", 0)
	g := w.gateway("learnt", "")
	other := g.neighbour()
	g.known()
	other.known()
	g.dial(0)
	g.awaitAccount(0, g.home())
	before := g.connection(0)
	second := w.replica("second", 0)
	asker := w.hub.Connect(0, "callout")
	eventually(t, func() bool { return w.tellers(asker, g.node) == 2 }, "the second replica has not learnt")
	first.stop()

	// Only now somebody is suspected, or a replica would have asked about the cell's links for that.
	_, old := hubtest.Key(t)
	g.change(func(s *identity.NodeIdentitySpec) { s.Revoked = []string{old} })
	other.dial(0)
	other.awaitAccount(0, other.home())
	other.revoke()
	other.awaitAccount(0, "")
	eventually(t, func() bool { return second.counted(t, "frond_identity_refusals_total", "revoked-key") > 0 }, "it does not dial again")
	if n := second.counted(t, "frond_identity_kicks_total", "nobody-knows"); n != 0 || g.connection(0) != before {
		t.Errorf("a link that both replicas knew was closed when the first one went: %v", n)
	}
}

// tellers counts the replicas that know a link of the node.
func (w *world) tellers(nc *nats.Conn, node string) (n int) {
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

func TestAnyReplicaAnswersAndKnownNodesComeBackAfterAll(t *testing.T) {
	w := newWorld(t, 1)
	a, b := w.replica("a", 0), w.replica("b", 0)
	answers := func(r *replica) float64 { return r.counted(t, "frond_identity_answers_total", "cell") }
	g := w.gateway("any-1", "")
	g.known()
	eventually(t, func() bool { return b.records.Of(g.node) != nil && a.records.Of(g.node) != nil }, "the records are not read")
	g.dial(0)
	g.awaitAccount(0, g.home())
	kick := func() {
		t.Helper()
		z, err := w.hub.Server(0).Leafz(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, leaf := range z.Leafs {
			_ = w.hub.Server(0).DisconnectClientByID(leaf.ID) // gone is as good
		}
	}
	again := func() bool {
		kick()
		g.awaitAccount(0, g.home())
		return answers(a) > 0 && answers(b) > 0
	}
	eventually(t, again, "one replica answers all")

	a.stop()
	for range 3 {
		kick()
		g.awaitAccount(0, g.home())
	}

	b.stop()
	kick()
	eventually(t, func() bool { return g.account(0) == "" }, "in, though nobody answers")
	began := time.Now()
	w.replica("c", 0)
	g.awaitAccount(0, g.home())
	t.Logf("back %s after the first cloudcore", time.Since(began).Round(time.Millisecond))
}

func TestOncePreviousKeyIsOverItsLinkIs(t *testing.T) {
	w := newWorld(t, 1)
	r := w.replica("a", 0)
	g := w.gateway("rotate-1", "")
	g.known()
	g.change(func(s *identity.NodeIdentitySpec) { s.Issued.Time = s.Issued.Add(-w.policy.KeyLifetime / 2) })
	g.dial(0)
	g.awaitAccount(0, g.home())
	clone := w.gateway("rotate-1", "") // of the disk as it was
	clone.pair, clone.key = g.pair, g.key

	before := g.newKey()
	var answer identity.Enrolment
	g.call(g.node, identity.VerbRenew, g.renewal(before), &answer)
	granted(t, answer)
	if n := r.counted(t, "frond_identity_kicks_total", "other-key"); n != 0 || g.account(0) != g.home() {
		t.Errorf("the link was closed by the renewal of its key")
	}
	g.hangUp()
	clone.dial(0)
	clone.awaitAccount(0, g.home()) // the answer might have been lost
	g.dial(0)                       // the hub takes the newer of two leafs of one name
	eventually(t, func() bool { return g.spec().Previous == "" }, "the previous key goes on")
	kubetest.Eventually(t, limit, func() error {
		if n := r.counted(t, "frond_identity_refusals_total", "other-key"); n == 0 {
			return fmt.Errorf("the clone is not refused")
		}
		return nil
	})
	g.awaitAccount(0, streams.CellAccount(g.node, cells))
}
