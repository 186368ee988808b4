package identity_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nkeys"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/internal/kubetest"
)

// carrying is a renewal that asks for its link to be carried over.
func (g *gateway) carrying(current nkeys.KeyPair) identity.RenewRequest {
	g.Helper()
	r := g.renewal(current)
	g.mu.Lock()
	defer g.mu.Unlock()
	link, err := g.pair.Sign([]byte(g.nonce))
	if err != nil {
		g.Fatal(err)
	}
	r.Nonce, r.Link = g.nonce, link
	return r
}

// renews changes the key over the link, and tells that the answer has come.
func (g *gateway) renews() (carried bool) {
	g.Helper()
	g.change(func(s *identity.NodeIdentitySpec) { s.Issued.Time = s.Issued.Add(-g.policy.KeyLifetime / 2) }) // long enough ago
	before := g.newKey()
	for _, current := range []nkeys.KeyPair{before, g.pair} {
		var answer identity.Enrolment
		g.call(g.node, identity.VerbRenew, g.carrying(current), &answer)
		granted(g.T, answer)
		carried = answer.Carried
	}
	return carried
}

// A link is carried over from key to key, at whichever replica, and the key before is nobody as soon as the answer has come.
func TestALinkOutlivesItsKeys(t *testing.T) {
	w := newWorld(t, 1)
	replicas := []*replica{w.replica("a", 0), w.replica("b", 0)}
	g := w.gateway("carry-1", "")
	g.known()
	bystander := w.hub.Connect(0, "callout")
	heard, err := bystander.SubscribeSync("frond.identity.admitted")
	if err != nil {
		t.Fatal(err)
	}
	g.dial(0)
	g.awaitAccount(0, g.home())
	first, err := heard.NextMsg(limit)
	if err != nil {
		t.Fatal(err)
	}
	link := g.connection(0)
	clone := w.gateway("carry-1", "") // of the disk as it was
	clone.pair, clone.key = g.pair, g.key
	for range 3 {
		if !g.renews() {
			t.Fatal("the link is not carried over")
		}
		eventually(t, func() bool { return g.spec().Previous == "" }, "the previous key goes on, though the answer has come")
		if err := bystander.PublishMsg(first); err != nil { // a replica that has not heard of it tells what it knows
			t.Fatal(err)
		}
	}
	clone.called = g.node
	refused := func() float64 {
		return replicas[0].counted(t, "frond_identity_refusals_total", "other-key") + replicas[1].counted(t, "frond_identity_refusals_total", "other-key")
	}
	clone.dial(0)
	eventually(t, func() bool { return refused() > 0 }, "the clone is not refused")
	for _, r := range replicas {
		for _, reason := range []string{"other-key", "nobody-knows"} {
			if n := r.counted(t, "frond_identity_kicks_total", reason); n != 0 {
				t.Errorf("%v links were closed for %s", n, reason)
			}
		}
	}
	if now := g.connection(0); now != link {
		t.Errorf("the link was %d, and is %d", link, now)
	}
	g.revoke()
	g.awaitAccount(0, "")
}

// A link is carried over by nobody but who holds the next key and is at that link's node.
func TestAForeignLinkIsNotCarriedOver(t *testing.T) {
	w := newWorld(t, 1)
	w.replica("a", 0)
	victim := w.gateway("carried", "")
	thief := victim.neighbour()
	for _, one := range []*gateway{victim, thief} {
		one.known()
		one.dial(0)
		one.awaitAccount(0, one.home())
	}
	var answer identity.Enrolment
	for name, spoil := range map[string]func(r *identity.RenewRequest){
		"another's link": func(r *identity.RenewRequest) {
			victim.mu.Lock()
			defer victim.mu.Unlock()
			r.Nonce = victim.nonce
			r.Link, _ = thief.pair.Sign([]byte(victim.nonce))
		},
		"a nonce that nobody has given": func(r *identity.RenewRequest) {
			r.Nonce = "none"
			r.Link, _ = thief.pair.Sign([]byte("none"))
		},
		"signed by another key": func(r *identity.RenewRequest) {
			other, err := nkeys.CreateUser()
			if err != nil {
				t.Fatal(err)
			}
			r.Link, _ = other.Sign([]byte(r.Nonce))
		},
	} {
		r := thief.carrying(thief.pair)
		spoil(&r)
		thief.call(thief.node, identity.VerbRenew, r, &answer)
		if granted(t, answer); answer.Carried {
			t.Errorf("carried over: %s", name)
		}
	}
	thief.call(thief.node, identity.VerbRenew, thief.carrying(thief.pair), &answer)
	if !answer.Carried {
		t.Error("its own link is not carried over") // or what comes before proves nothing
	}
	thief.revoke()
	thief.awaitAccount(0, "")
	if victim.account(0) != victim.home() {
		t.Error("the victim's link is gone")
	}
}

// A link with a copied key of which nobody knows any more ends when its key is replaced; the node's own stays.
func TestALinkThatNobodyKnowsEndsWithItsKey(t *testing.T) {
	for name, forget := range map[string]func(g *gateway, first *replica) *replica{
		"all cloudcores were away": func(g *gateway, first *replica) *replica {
			first.stop()
			return g.replica("second", 2)
		},
		"more links than are remembered": func(g *gateway, first *replica) *replica {
			for i := range 9 { // each on a server that is gone, without a word
				a := fmt.Sprintf(`{"server":"gone","cid":%d,"node":%q,"key":%q}`, i+1, g.node, g.key)
				if err := g.hub.Connect(1, "callout").Publish("frond.identity.admitted", []byte(a)); err != nil {
					g.Fatal(err)
				}
			}
			return first
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3)
			r := w.replica("first", 2)
			g, clone := w.gateway("forgotten", ""), w.gateway("forgotten", "")
			clone.pair, clone.key = g.pair, g.key
			g.known()
			clone.dial(0)
			clone.awaitAccount(0, g.home())
			r = forget(g, r)
			g.dial(1)
			g.awaitAccount(1, g.home())
			link := g.connection(1)
			if clone.account(0) != g.home() {
				t.Fatal("the clone's link is closed already")
			}
			if !g.renews() {
				t.Fatal("the link is not carried over")
			}
			kubetest.Eventually(t, limit, func() error {
				if n := r.counted(t, "frond_identity_kicks_total", "nobody-knows"); n == 0 {
					return fmt.Errorf("the link that nobody knows stays")
				}
				return nil
			})
			clone.awaitAccount(0, "")
			if now := g.connection(1); now != link {
				t.Errorf("the node's own link was %d, and is %d", link, now)
			}
		})
	}
}
