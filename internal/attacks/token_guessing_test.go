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
	"github.com/frond-edge/frond/internal/install"
)

// guesser tries ever other tokens from one address, over several links at once.
type guesser struct {
	loot
	refused atomic.Int64 // by the hub, in its words
	letIn   atomic.Int64
	ids     atomic.Int64
}

// until guesses until a condition holds, or ctx ends.
func (g *guesser) until(ctx context.Context, holds func() bool) {
	const atOnce, between = 8, 16
	for ctx.Err() == nil && !holds() {
		var all sync.WaitGroup
		for range atOnce {
			all.Go(func() {
				for range between {
					g.try(ctx)
				}
			})
		}
		all.Wait()
	}
}

func (g *guesser) try(ctx context.Context) {
	l := g.loot
	l.token = fmt.Sprintf("%06d.%016x", g.ids.Add(1), time.Now().UnixNano())
	th, err := l.tryIn(ctx, nil)
	switch {
	case err == nil:
		g.letIn.Add(1)
		_ = th.conn.Close()
		<-th.over
	case strings.Contains(err.Error(), "Authorization Violation"):
		g.refused.Add(1)
	}
}

// TestAnAddressThatGuessesIsLockedOut tries other tokens than any that was made, from one address, until no cloudcore looks at one from
// there. While that goes on, a gateway joins from another address. A good token from there is of no use then, and a known key is. It
// takes some 3 s.
func TestAnAddressThatGuessesIsLockedOut(t *testing.T) {
	token := issue(t, install.TokenOptions{Uses: 2}, time.Now())
	enter(t, stranger(t, newName(), token)) // it is known now, and was not used
	g := &guesser{loot: stranger(t, newName(), "")}
	unknown, locked := meter(t, "frond_identity_refusals_total", "reason=token-unknown"), meter(t, "frond_identity_refusals_total", "reason=locked")
	lockouts := meter(t, "frond_identity_lockouts_total", "by=address")
	good := stranger(t, newName(), token)
	good.from = g.from
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience) // a cloudcore forgets each minute
	defer cancel()
	g.until(ctx, func() bool {
		for range 4 * shared.Spec().Cloudcores { // any of them answers
			if th, err := good.tryIn(ctx, nil); err == nil {
				_ = th.conn.Close()
				<-th.over
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
	guessing.Go(func() { g.until(over, func() bool { return false }) })
	honest := stranger(t, newName(), token)
	e := verdict(t, enter(t, honest).call(t, identity.VerbEnrol, honest.enrolment(t)))
	known := steal(t, stolen)
	known.from = g.from
	known.breakIn(t, nil)
	stop()
	guessing.Wait()
	if e.Reason != "" || !e.Expires.After(e.Now) {
		t.Errorf("from another address: %+v", e)
	}

	if n := g.letIn.Load(); n > 0 {
		t.Errorf("%d guesses were let in", n)
	}
	// The hub gives up on a cloudcore that is slow, and then refuses by itself.
	rises(t, "what was guessed", func() float64 { return unknown() + locked() }, float64(g.refused.Load())*9/10)
	for _, reason := range []string{"token-unknown", "locked"} {
		logged(t, "link refused", reason, g.from)
	}
	t.Logf("%d guesses: %v looked at, %v locked out", g.refused.Load(), unknown(), locked())
}
