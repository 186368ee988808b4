package identity_test

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
)

func parseURLs(t *testing.T, text string) []*url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return []*url.URL{u}
}

func TestEnrol_JoinsByTokenAndReturnsByKey(t *testing.T) {
	w := newFixture(t, 1)
	r := w.startReplica("a", 0)
	g := w.newGateway("join-1", "")
	g.startLeaf(0)
	kit.Succeeds(t, testTimeout, func() error {
		if n := r.counterSum(t, "frond_identity_refusals_total", "unknown"); n == 0 {
			return fmt.Errorf("a stranger was not refused")
		}
		return nil
	})
	if in := g.linkAccount(0); in != "" {
		t.Fatalf("a stranger is in %s", in)
	}

	g.mu.Lock()
	g.token = w.createToken("join01", nil)
	g.mu.Unlock()
	g.awaitAccount(0, subject.LobbyAccount)
	var answer identity.Enrolment
	for range 2 { // the first answer may get lost
		g.callCloud(g.key, identity.VerbEnrol, g.enrolRequest(), &answer)
		if answer.Reason != "" || time.Until(answer.Expires) < w.policy.KeyLifetime-time.Minute || answer.HubCA == "" || answer.ClusterCA == "" ||
			len(answer.HubURLs) != 1 || time.Since(answer.Now).Abs() > time.Minute {
			t.Fatalf("answer: %+v", answer)
		}
	}
	if used := w.tokenUses("join01"); len(used) != 1 || used[0] != g.node+"="+g.key {
		t.Errorf("the token was used by %v", used)
	}
	if spec := g.readSpec(); spec.Key != g.key || !spec.Expires.Time.Equal(answer.Expires) {
		t.Errorf("recorded: %+v", spec)
	}

	g.stopLeaf() // with its token, and its key recorded
	g.startLeaf(0)
	g.awaitAccount(0, g.cellAccount())
	var empty struct{}
	g.callCloud(g.node, subject.VerbPing, empty, &empty)
}

// The hub closes the older of two links with the same name.
func TestCallout_ForeignServerNameIsRefused(t *testing.T) {
	w := newFixture(t, 1)
	r := w.startReplica("a", 0)
	victim := w.newGateway("called", "")
	thief := victim.sameCellGateway()
	victim.writeRecord()
	thief.writeRecord()
	victim.startLeaf(0)
	victim.awaitAccount(0, victim.cellAccount())
	before := victim.linkNumber(0)
	thief.leafName = victim.node
	thief.startLeaf(0)
	waitUntil(t, func() bool { return r.counterSum(t, "frond_identity_refusals_total", "server-name") >= 3 }, "not refused")
	if after := victim.linkNumber(0); after != before {
		t.Errorf("the victim's link was %d, and is %d", before, after)
	}
}

func TestCallout_RefusesUnprovenIdentity(t *testing.T) {
	w := newFixture(t, 1)
	r := w.startReplica("a", 0)
	victim, thief := w.newGateway("prove-1", ""), w.newGateway("prove-1", "")
	victim.writeRecord()
	for name, tt := range map[string]struct {
		reason string
		change func()
	}{
		"another key, the victim's name":  {"other-key", func() {}},
		"the victim's key, not its seed":  {"signature", func() { thief.key = victim.key }},
		"a name that is no node's":        {"node-name", func() { thief.node = "Prove_1" }},
		"a name that is a pattern":        {"node-name", func() { thief.node = "*" }},
		"a key that is none":              {"garbage", func() { thief.key = "U" }},
		"a token that nobody has made":    {"token-unknown", func() { thief.node, thief.token = "prove-2", "zzzzzz."+tokenSecret }},
		"a token of another form":         {"token-unknown", func() { thief.node, thief.token = "prove-2", "what" }},
		"a token with a made up end":      {"token-wrong", func() { thief.node, thief.token = "prove-2", w.createToken("prove1", nil)[:7]+"zzzzzzzzzzzzzzzz" }},
		"a token of kubeadm's other uses": {"token-unknown", func() { thief.node, thief.token = "prove-2", "kubead."+tokenSecret }},
	} {
		t.Run(name, func(t *testing.T) {
			thief.T, thief.node, thief.token = t, "prove-1", ""
			thief.newKey()
			tt.change()
			before := r.counterSum(t, "frond_identity_refusals_total", tt.reason)
			thief.startLeaf(0)
			kit.Succeeds(t, testTimeout, func() error {
				if r.counterSum(t, "frond_identity_refusals_total", tt.reason) == before {
					return fmt.Errorf("not refused for %s", tt.reason)
				}
				return nil
			})
			if in := thief.linkAccount(0); in != "" {
				t.Errorf("in %s", in)
			}
			thief.stopLeaf()
		})
	}
}
