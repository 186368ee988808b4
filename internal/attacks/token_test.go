package attacks_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/internal/install"
)

// guess is a token of a good one's id whose other half is wrong.
func guess(token string) string {
	id, _, _ := strings.Cut(token, ".")
	return fmt.Sprintf("%s.%016x", id, time.Now().UnixNano())
}

// most is more guesses than any limit of two cloudcores allows.
const most = 500

// TestTokensAreNotGuessed tries one token after the other over ever new links: from one address, which is locked out alone, and from
// many, which locks the token for the rest of a minute.
func TestTokensAreNotGuessed(t *testing.T) {
	token := issue(t, install.TokenOptions{Uses: 1}, time.Now())
	enter(t, stranger(t, newName(), token)) // it is known now, and was not used
	hold := func(what string, until func() float64, from func() string) {
		t.Helper()
		wrong, locked := meter(t, "frond_identity_refusals_total", "reason=token-wrong"), meter(t, "frond_identity_refusals_total", "reason=locked")
		tried := 0
		for ; tried < most && (until() == 0 || locked() == 0); tried++ {
			l := stranger(t, newName(), guess(token))
			l.from = from()
			if _, err := l.tryIn(t.Context(), nil); err == nil {
				t.Fatalf("%s: a guessed token lets in", what)
			}
		}
		if until() == 0 || locked() == 0 {
			t.Errorf("%s: not locked out after %d tries", what, tried)
		}
		t.Logf("%s: %d links, %v wrong, %v locked out", what, tried, wrong(), locked())
	}
	one := elsewhere()
	hold("from one address", meter(t, "frond_identity_lockouts_total", "by=address-and-token"), func() string { return one })
	logged(t, "link refused", "token-wrong", one)

	newcomer := stranger(t, newName(), token)
	th := enter(t, newcomer)
	if e := verdict(t, th.call(t, identity.VerbEnrol, newcomer.enrolment(t))); e.Reason != "" || !e.Expires.After(e.Now) {
		t.Fatalf("from another address the token is not enough: %+v", e)
	}
	hold("from many addresses", meter(t, "frond_identity_lockouts_total", "by=token"), elsewhere)
	served(t)
}

// TestATokenIsGoodForWhatItSays shows tokens that are used up, expired, deleted, or another node's.
func TestATokenIsGoodForWhatItSays(t *testing.T) {
	before := recorded(t.Context(), t, victim)
	once := issue(t, install.TokenOptions{Uses: 1}, time.Now())
	first := stranger(t, newName(), once)
	th := enter(t, first)
	granted := verdict(t, th.call(t, identity.VerbEnrol, first.enrolment(t)))
	if granted.Reason != "" {
		t.Fatal(granted.Reason)
	}
	second := stranger(t, newName(), once)
	refuses(t, second, "token-used")
	// The link that came by it asks again, for itself, and for another node.
	if again := verdict(t, th.call(t, identity.VerbEnrol, first.enrolment(t))); again.Reason != "" || !again.Expires.Equal(granted.Expires) {
		t.Errorf("the same question has another answer: %+v, %+v", granted, again)
	}
	greedy := first
	greedy.node = newName()
	denies(t, th, identity.VerbEnrol, greedy.enrolment(t), "token-used")

	refuses(t, stranger(t, newName(), issue(t, install.TokenOptions{Uses: 1}, time.Now().Add(-2*time.Hour))), "token-expired", "token-unknown")
	refuses(t, stranger(t, newName(), "aaaaaa.0123456789abcdef"), "token-unknown")
	refuses(t, stranger(t, newName(), strings.Repeat("a", 2000)), "token-unknown")

	bound := issue(t, install.TokenOptions{Uses: 1, Node: newName()}, time.Now())
	refuses(t, stranger(t, newName(), bound), "token-node")
	refuses(t, stranger(t, victim, bound), "token-node")

	many := issue(t, install.TokenOptions{}, time.Now())
	taker := stranger(t, victim, many)
	denies(t, enter(t, taker), identity.VerbEnrol, taker.enrolment(t), "taken")

	late := stranger(t, newName(), many)
	th = enter(t, late)
	id, _, _ := identity.SplitToken(many)
	if err := kube.CoreV1().Secrets(identity.TokenNamespace).Delete(t.Context(), identity.TokenName(id), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	denies(t, th, identity.VerbEnrol, late.enrolment(t), "token-unknown") // though it came in while there was one
	refuses(t, stranger(t, newName(), many), "token-unknown")
	if after := recorded(t.Context(), t, victim); after.Key != before.Key || !after.Expires.Equal(&before.Expires) {
		t.Errorf("the victim is another: %+v, %+v", before, after)
	}
}

// refuses tries to come in until that is refused for one of the reasons: cloudcores hear of Secrets a little later.
func refuses(t *testing.T, l loot, reasons ...string) {
	t.Helper()
	var risen []func() float64
	for _, reason := range reasons {
		risen = append(risen, meter(t, "frond_identity_refusals_total", "reason="+reason))
	}
	eventually(t, fmt.Sprintf("refused as %v", reasons), func(ctx context.Context) string {
		l.from = elsewhere()
		if th, err := l.tryIn(ctx, nil); err == nil {
			_ = th.conn.Close()
			<-th.over
			return "it is let in"
		}
		for _, n := range risen {
			if n() > 0 {
				return ""
			}
		}
		return "it is refused otherwise"
	})
	logged(t, "link refused", l.public())
}

// denies asks over a link and wants a no, counted for the reason.
func denies(t *testing.T, th *thief, verb string, request []byte, reason string) {
	t.Helper()
	risen := meter(t, "frond_identity_refusals_total", "reason="+reason)
	if e := verdict(t, th.call(t, verb, request)); e.Reason == "" || !e.Expires.IsZero() {
		t.Errorf("%s, which should be refused as %s, is answered with %+v", verb, reason, e)
	}
	rises(t, reason, risen, 1)
	logged(t, "identity refused", reason, th.node)
}
