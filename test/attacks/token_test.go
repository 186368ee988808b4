package attacks_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/internal/install/jointoken"
)

// wrongToken returns a token with a valid id and a wrong secret.
func wrongToken(token string) string {
	id, _, _ := strings.Cut(token, ".")
	return fmt.Sprintf("%s.%016x", id, time.Now().UnixNano())
}

// guessCount exceeds every limit of two cloudcores.
const guessCount = 500

// TestToken_GuessingIsLimited tries one token after the other over new links: from one address, which alone is locked out, and from
// many, which locks the token for the rest of a minute.
func TestToken_GuessingIsLimited(t *testing.T) {
	token := issueToken(t, jointoken.Options{Uses: 1}, time.Now())
	openWithToken(t, newStranger(t, newName(), token)) // cloudcore knows the token now, and it was not used
	hold := func(what string, until func() float64, from func() string) {
		t.Helper()
		wrong, locked := counterDelta(t, "frond_identity_refusals_total", "reason=token-wrong"), counterDelta(t, "frond_identity_refusals_total", "reason=locked")
		tried := 0
		for ; tried < guessCount && (until() == 0 || locked() == 0); tried++ {
			l := newStranger(t, newName(), wrongToken(token))
			l.sourceIP = from()
			if _, err := l.openLink(t.Context(), nil); err == nil {
				t.Fatalf("%s: a guessed token lets in", what)
			}
		}
		if until() == 0 || locked() == 0 {
			t.Errorf("%s: not locked out after %d tries", what, tried)
		}
		t.Logf("%s: %d links, %v wrong, %v locked out", what, tried, wrong(), locked())
	}
	one := newAddress()
	hold("from one address", counterDelta(t, "frond_identity_lockouts_total", "by=address-and-token"), func() string { return one })
	awaitLogged(t, "link refused", "token-wrong", one)

	newcomer := newStranger(t, newName(), token)
	th := openWithToken(t, newcomer)
	if e := decodeEnrolment(t, th.callCloud(t, identity.VerbEnrol, newcomer.enrolRequest(t))); e.Reason != "" || !e.Expires.After(e.Now) {
		t.Fatalf("from another address the token is not enough: %+v", e)
	}
	hold("from many addresses", counterDelta(t, "frond_identity_lockouts_total", "by=token"), newAddress)
	checkVictimServed(t)
}

// TestToken_LimitsAreEnforced uses tokens that are used up, expired, deleted, or another node's.
func TestToken_LimitsAreEnforced(t *testing.T) {
	before := nodeIdentity(t.Context(), t, victim)
	once := issueToken(t, jointoken.Options{Uses: 1}, time.Now())
	first := newStranger(t, newName(), once)
	th := openWithToken(t, first)
	granted := decodeEnrolment(t, th.callCloud(t, identity.VerbEnrol, first.enrolRequest(t)))
	if granted.Reason != "" {
		t.Fatal(granted.Reason)
	}
	second := newStranger(t, newName(), once)
	expectRefused(t, second, "token-used")
	// The admitted link enrols again, for itself and for another node.
	if again := decodeEnrolment(t, th.callCloud(t, identity.VerbEnrol, first.enrolRequest(t))); again.Reason != "" || !again.Expires.Equal(granted.Expires) {
		t.Errorf("the same question has another answer: %+v, %+v", granted, again)
	}
	greedy := first
	greedy.node = newName()
	expectDenied(t, th, identity.VerbEnrol, greedy.enrolRequest(t), "token-used")

	expectRefused(t, newStranger(t, newName(), issueToken(t, jointoken.Options{Uses: 1}, time.Now().Add(-2*time.Hour))), "token-expired", "token-unknown")
	expectRefused(t, newStranger(t, newName(), "aaaaaa.0123456789abcdef"), "token-unknown")
	expectRefused(t, newStranger(t, newName(), strings.Repeat("a", 2000)), "token-unknown")

	bound := issueToken(t, jointoken.Options{Uses: 1, Node: newName()}, time.Now())
	expectRefused(t, newStranger(t, newName(), bound), "token-node")
	expectRefused(t, newStranger(t, victim, bound), "token-node")

	many := issueToken(t, jointoken.Options{}, time.Now())
	taker := newStranger(t, victim, many)
	expectDenied(t, openWithToken(t, taker), identity.VerbEnrol, taker.enrolRequest(t), "taken")

	late := newStranger(t, newName(), many)
	th = openWithToken(t, late)
	id, _, _ := identity.SplitToken(many)
	if err := kube.CoreV1().Secrets(identity.TokenNamespace).Delete(t.Context(), identity.TokenName(id), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expectDenied(t, th, identity.VerbEnrol, late.enrolRequest(t), "token-unknown") // although the token existed when the link was admitted
	expectRefused(t, newStranger(t, newName(), many), "token-unknown")
	if after := nodeIdentity(t.Context(), t, victim); after.Key != before.Key || !after.Expires.Equal(&before.Expires) {
		t.Errorf("the victim is another: %+v, %+v", before, after)
	}
}

// expectRefused opens links until one is refused for one of the reasons: cloudcores learn of Secrets a little later.
func expectRefused(t *testing.T, l loot, reasons ...string) {
	t.Helper()
	var risen []func() float64
	for _, reason := range reasons {
		risen = append(risen, counterDelta(t, "frond_identity_refusals_total", "reason="+reason))
	}
	eventually(t, fmt.Sprintf("refused as %v", reasons), func(ctx context.Context) string {
		l.sourceIP = newAddress()
		if th, err := l.openLink(ctx, nil); err == nil {
			_ = th.conn.Close()
			<-th.closed
			return "it is let in"
		}
		for _, n := range risen {
			if n() > 0 {
				return ""
			}
		}
		return "it is refused otherwise"
	})
	awaitLogged(t, "link refused", l.publicKey())
}

// expectDenied sends a request over a link and expects a refusal, counted by the reason.
func expectDenied(t *testing.T, th *attacker, verb string, request []byte, reason string) {
	t.Helper()
	risen := counterDelta(t, "frond_identity_refusals_total", "reason="+reason)
	if e := decodeEnrolment(t, th.callCloud(t, verb, request)); e.Reason == "" || !e.Expires.IsZero() {
		t.Errorf("%s, which should be refused as %s, is answered with %+v", verb, reason, e)
	}
	awaitCounter(t, reason, risen, 1)
	awaitLogged(t, "identity refused", reason, th.node)
}
