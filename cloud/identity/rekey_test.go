package identity_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nkeys"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/test/kit"
)

// rekeyRequest returns a renewal that requests the transfer of its link.
func (g *testGateway) rekeyRequest(current nkeys.KeyPair) identity.RenewRequest {
	g.Helper()
	r := g.renewRequest(current)
	g.mu.Lock()
	defer g.mu.Unlock()
	link, err := g.keyPair.Sign([]byte(g.nonce))
	if err != nil {
		g.Fatal(err)
	}
	r.Nonce, r.Link = g.nonce, link
	return r
}

// renewOverLink changes the key over the link, and confirms that the answer has arrived.
func (g *testGateway) renewOverLink() (carried bool) {
	g.Helper()
	g.editSpec(func(s *identity.NodeIdentitySpec) { s.Issued.Time = s.Issued.Add(-g.policy.KeyLifetime / 2) }) // long enough ago
	before := g.newKey()
	for _, current := range []nkeys.KeyPair{before, g.keyPair} {
		var answer identity.Enrolment
		g.callCloud(g.node, identity.VerbRenew, g.rekeyRequest(current), &answer)
		wantGranted(g.T, answer)
		carried = answer.Carried
	}
	return carried
}

// A link is transferred from key to key, at any replica, and the previous key is rejected as soon as the answer has arrived.
func TestLinks_SurviveKeyRenewal(t *testing.T) {
	w := newFixture(t, 1)
	replicas := []*identityReplica{w.startReplica("a", 0), w.startReplica("b", 0)}
	g := w.newGateway("carry-1", "")
	g.writeRecord()
	bystander := w.hub.Connect(0, "callout")
	heard, err := bystander.SubscribeSync("frond.identity.admitted")
	if err != nil {
		t.Fatal(err)
	}
	g.startLeaf(0)
	g.awaitAccount(0, g.cellAccount())
	first, err := heard.NextMsg(testTimeout)
	if err != nil {
		t.Fatal(err)
	}
	link := g.linkNumber(0)
	clone := w.newGateway("carry-1", "") // of the disk image
	clone.keyPair, clone.key = g.keyPair, g.key
	for range 3 {
		if !g.renewOverLink() {
			t.Fatal("the link is not carried over")
		}
		waitUntil(t, func() bool { return g.readSpec().Previous == "" }, "the previous key goes on, though the answer has come")
		if err := bystander.PublishMsg(first); err != nil { // a replica that has not received it answers with what it knows
			t.Fatal(err)
		}
	}
	clone.leafName = g.node
	refused := func() float64 {
		return replicas[0].counterSum(t, "frond_identity_refusals_total", "other-key") + replicas[1].counterSum(t, "frond_identity_refusals_total", "other-key")
	}
	clone.startLeaf(0)
	waitUntil(t, func() bool { return refused() > 0 }, "the clone is not refused")
	for _, r := range replicas {
		for _, reason := range []string{"other-key", "nobody-knows"} {
			if n := r.counterSum(t, "frond_identity_kicks_total", reason); n != 0 {
				t.Errorf("%v links were closed for %s", n, reason)
			}
		}
	}
	if now := g.linkNumber(0); now != link {
		t.Errorf("the link was %d, and is %d", link, now)
	}
	g.revokeNode()
	g.awaitAccount(0, "")
}

// Only the holder of the next key, connected over that node's link, can transfer the link.
func TestLinks_ForeignLinkIsNotRekeyed(t *testing.T) {
	w := newFixture(t, 1)
	w.startReplica("a", 0)
	victim := w.newGateway("carried", "")
	thief := victim.sameCellGateway()
	for _, one := range []*testGateway{victim, thief} {
		one.writeRecord()
		one.startLeaf(0)
		one.awaitAccount(0, one.cellAccount())
	}
	var answer identity.Enrolment
	for name, spoil := range map[string]func(r *identity.RenewRequest){
		"another's link": func(r *identity.RenewRequest) {
			victim.mu.Lock()
			defer victim.mu.Unlock()
			r.Nonce = victim.nonce
			r.Link, _ = thief.keyPair.Sign([]byte(victim.nonce))
		},
		"a nonce that nobody has given": func(r *identity.RenewRequest) {
			r.Nonce = "none"
			r.Link, _ = thief.keyPair.Sign([]byte("none"))
		},
		"signed by another key": func(r *identity.RenewRequest) {
			other, err := nkeys.CreateUser()
			if err != nil {
				t.Fatal(err)
			}
			r.Link, _ = other.Sign([]byte(r.Nonce))
		},
	} {
		r := thief.rekeyRequest(thief.keyPair)
		spoil(&r)
		thief.callCloud(thief.node, identity.VerbRenew, r, &answer)
		if wantGranted(t, answer); answer.Carried {
			t.Errorf("carried over: %s", name)
		}
	}
	thief.callCloud(thief.node, identity.VerbRenew, thief.rekeyRequest(thief.keyPair), &answer)
	if !answer.Carried {
		t.Error("its own link is not carried over") // otherwise the checks before prove nothing
	}
	thief.revokeNode()
	thief.awaitAccount(0, "")
	if victim.linkAccount(0) != victim.cellAccount() {
		t.Error("the victim's link is gone")
	}
}

// An unknown link with a copied key ends when the key is replaced; the node's own stays.
func TestEnforcer_UnknownLinkEndsWithItsKey(t *testing.T) {
	for name, forget := range map[string]func(g *testGateway, first *identityReplica) *identityReplica{
		"all cloudcores were away": func(g *testGateway, first *identityReplica) *identityReplica {
			first.stop()
			return g.startReplica("second", 2)
		},
		"more links than are remembered": func(g *testGateway, first *identityReplica) *identityReplica {
			for i := range 9 { // each on a server that ended silently
				a := fmt.Sprintf(`{"server":"gone","cid":%d,"node":%q,"key":%q}`, i+1, g.node, g.key)
				if err := g.hub.Connect(1, "callout").Publish("frond.identity.admitted", []byte(a)); err != nil {
					g.Fatal(err)
				}
			}
			return first
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, 3)
			r := w.startReplica("first", 2)
			g, clone := w.newGateway("forgotten", ""), w.newGateway("forgotten", "")
			clone.keyPair, clone.key = g.keyPair, g.key
			g.writeRecord()
			clone.startLeaf(0)
			clone.awaitAccount(0, g.cellAccount())
			r = forget(g, r)
			g.startLeaf(1)
			g.awaitAccount(1, g.cellAccount())
			link := g.linkNumber(1)
			if clone.linkAccount(0) != g.cellAccount() {
				t.Fatal("the clone's link is closed already")
			}
			if !g.renewOverLink() {
				t.Fatal("the link is not carried over")
			}
			kit.Succeeds(t, testTimeout, func() error {
				if n := r.counterSum(t, "frond_identity_kicks_total", "nobody-knows"); n == 0 {
					return fmt.Errorf("the link that nobody knows stays")
				}
				return nil
			})
			clone.awaitAccount(0, "")
			if now := g.linkNumber(1); now != link {
				t.Errorf("the node's own link was %d, and is %d", link, now)
			}
		})
	}
}
