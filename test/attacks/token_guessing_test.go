package attacks_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/internal/install/jointoken"
)

// tokenGuesser tries different tokens from one address, over several links at once.
type tokenGuesser struct {
	loot
	refused  atomic.Int64 // refusals by the hub
	accepted atomic.Int64
	ids      atomic.Int64
}

// guessUntil guesses until a condition holds, or ctx ends.
func (g *tokenGuesser) guessUntil(ctx context.Context, holds func() bool) {
	const atOnce, between = 8, 16
	for ctx.Err() == nil && !holds() {
		var all sync.WaitGroup
		for range atOnce {
			all.Go(func() {
				for range between {
					g.tryToken(ctx)
				}
			})
		}
		all.Wait()
	}
}

func (g *tokenGuesser) tryToken(ctx context.Context) {
	l := g.loot
	l.token = fmt.Sprintf("%06d.%016x", g.ids.Add(1), time.Now().UnixNano())
	th, err := l.openLink(ctx, nil)
	switch {
	case err == nil:
		g.accepted.Add(1)
		_ = th.conn.Close()
		<-th.closed
	case strings.Contains(err.Error(), "Authorization Violation"):
		g.refused.Add(1)
	}
}

// TestToken_GuessingAddressIsLockedOut guesses tokens from one address until all cloudcores lock that address out. Meanwhile a gateway joins
// from another address. From the locked address a valid token is refused, and a known key is accepted. It takes some 3 s.
func TestToken_GuessingAddressIsLockedOut(t *testing.T) {
	token := issueToken(t, jointoken.Options{Uses: 2}, time.Now())
	openWithToken(t, newStranger(t, newName(), token)) // cloudcore knows the token now, and it was not used
	g := &tokenGuesser{loot: newStranger(t, newName(), "")}
	unknown, locked := counterDelta(t, "frond_identity_refusals_total", "reason=token-unknown"), counterDelta(t, "frond_identity_refusals_total", "reason=locked")
	lockouts := counterDelta(t, "frond_identity_lockouts_total", "by=address")
	good := newStranger(t, newName(), token)
	good.sourceIP = g.sourceIP
	ctx, cancel := context.WithTimeout(t.Context(), 2*waitTimeout) // a cloudcore forgets each minute
	defer cancel()
	g.guessUntil(ctx, func() bool {
		for range 4 * shared.Spec().Cloudcores { // any of them answers
			if th, err := good.openLink(ctx, nil); err == nil {
				_ = th.conn.Close()
				<-th.closed
				return false
			}
		}
		return lockouts() > 0
	})
	if ctx.Err() != nil {
		t.Fatalf("%d guesses were refused, and the address was locked out %v times", g.refused.Load(), lockouts())
	}
	if n := locked(); n == 0 {
		t.Error("nothing is refused as locked")
	}

	var guessing sync.WaitGroup
	over, stop := context.WithCancel(ctx)
	guessing.Go(func() { g.guessUntil(over, func() bool { return false }) })
	honest := newStranger(t, newName(), token)
	e := decodeEnrolment(t, openWithToken(t, honest).callCloud(t, identity.VerbEnrol, honest.enrolRequest(t)))
	known := stealCredentials(t, stolen)
	known.sourceIP = g.sourceIP
	known.mustOpenLink(t, nil)
	stop()
	guessing.Wait()
	if e.Reason != "" || !e.Expires.After(e.Now) {
		t.Errorf("from another address: %+v", e)
	}

	if n := g.accepted.Load(); n > 0 {
		t.Errorf("%d guesses were let in", n)
	}
	// The hub times out on a slow cloudcore, and then refuses by itself.
	awaitCounter(t, "what was guessed", func() float64 { return unknown() + locked() }, float64(g.refused.Load())*9/10)
	for _, reason := range []string{"token-unknown", "locked"} {
		awaitLogged(t, "link refused", reason, g.sourceIP)
	}
	t.Logf("%d guesses: %v looked at, %v locked out", g.refused.Load(), unknown(), locked())
}
