package attacks_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/internal/install"
)

// TestARevokedKeyIsNobodyAnywhere has a gateway linked to each server of the hub, revokes it, and tries to come back in by all names.
func TestARevokedKeyIsNobodyAnywhere(t *testing.T) {
	token := issue(t, install.TokenOptions{}, time.Now())
	l := stranger(t, newName(), token)
	if e := verdict(t, enter(t, l).call(t, identity.VerbEnrol, l.enrolment(t))); e.Reason != "" {
		t.Fatal(e.Reason)
	}
	l.token = ""
	var links []*thief
	for range l.addresses {
		links = append(links, enter(t, l))
	}
	kicks := meter(t, "frond_identity_kicks_total")
	unharmed(t, func() {
		began := time.Now()
		patch := fmt.Sprintf(`{"spec":{"key":"","previous":"","revoked":[%q],"revokedAt":%q}}`, l.public(), time.Now().UTC().Format(time.RFC3339))
		if _, err := shared.Kubectl(t.Context(), "", "patch", "nodeidentity", l.node, "--type=merge", "-p", patch); err != nil {
			t.Fatal(err)
		}
		for i, th := range links {
			if !within(t.Context(), patience, func() bool { return over(th) }) {
				t.Fatalf("the link to server %d stays", i)
			}
		}
		t.Logf("%d links were closed within %s of the order", len(links), time.Since(began).Round(time.Millisecond))
	})
	rises(t, "a closed link", kicks, 1)
	logged(t, "link closed", l.public())
	for name, again := range map[string]loot{
		"its name":                       {node: l.node},
		"its name, with a token":         {node: l.node, token: token},
		"its name, with a token for it":  {node: l.node, token: issue(t, install.TokenOptions{Node: l.node}, time.Now())},
		"the victim's":                   {node: victim},
		"another's that is stolen":       {node: stolen},
		"a new one":                      {node: newName()},
		"a new one, with a token":        {node: newName(), token: token},
		"a new one, with a token for it": {node: "stranger-named", token: issue(t, install.TokenOptions{Node: "stranger-named"}, time.Now())},
	} {
		t.Run(name, func(t *testing.T) {
			again.key, again.secret, again.addresses = l.key, l.secret, l.addresses
			refused := meter(t, "frond_identity_refusals_total", "reason=revoked-key")
			for range again.addresses {
				again.from = elsewhere()
				if th, err := again.tryIn(t.Context(), nil); err == nil {
					_ = th.conn.Close()
					t.Error("it is in")
				}
			}
			rises(t, "the key", refused, 1)
		})
	}
	// Nor does who is in already lend it the link.
	th := steal(t, stolen).breakIn(t, nil)
	denies(t, th, identity.VerbRenew, l.renewal(t), "caller")
	eventually(t, "no server of the hub has the link", func(ctx context.Context) string {
		text, err := shared.Kubectl(ctx, "", "get", "nodeidentity", l.node, "-o", "jsonpath={.spec.key}")
		if err != nil || text != "" {
			return fmt.Sprint(text, err)
		}
		return ""
	})
}
