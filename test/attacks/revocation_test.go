package attacks_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/internal/install/jointoken"
)

// TestRevocation_KeyIsRefusedByEachHub links a gateway to each server of the hub, revokes it, and tries to connect again under every name.
func TestRevocation_KeyIsRefusedByEachHub(t *testing.T) {
	token := issueToken(t, jointoken.Options{}, time.Now())
	l := newStranger(t, newName(), token)
	if e := decodeEnrolment(t, openWithToken(t, l).callCloud(t, identity.VerbEnrol, l.enrolRequest(t))); e.Reason != "" {
		t.Fatal(e.Reason)
	}
	l.token = ""
	var links []*attacker
	for range l.addresses {
		links = append(links, openWithToken(t, l))
	}
	kicks := counterDelta(t, "frond_identity_kicks_total")
	checkUnharmed(t, func() {
		began := time.Now()
		patch := fmt.Sprintf(`{"spec":{"key":"","previous":"","revoked":[%q],"revokedAt":%q}}`, l.publicKey(), time.Now().UTC().Format(time.RFC3339))
		if _, err := shared.Kubectl(t.Context(), "", "patch", "nodeidentity", l.node, "--type=merge", "-p", patch); err != nil {
			t.Fatal(err)
		}
		for i, th := range links {
			if !pollWithin(t.Context(), waitTimeout, func() bool { return isClosed(th) }) {
				t.Fatalf("the link to server %d stays", i)
			}
		}
		t.Logf("%d links were closed within %s of the order", len(links), time.Since(began).Round(time.Millisecond))
	})
	awaitCounter(t, "a closed link", kicks, 1)
	awaitLogged(t, "link closed", l.publicKey())
	for name, again := range map[string]loot{
		"its name":                       {node: l.node},
		"its name, with a token":         {node: l.node, token: token},
		"its name, with a token for it":  {node: l.node, token: issueToken(t, jointoken.Options{Node: l.node}, time.Now())},
		"the victim's":                   {node: victim},
		"another's that is stolen":       {node: stolen},
		"a new one":                      {node: newName()},
		"a new one, with a token":        {node: newName(), token: token},
		"a new one, with a token for it": {node: "stranger-named", token: issueToken(t, jointoken.Options{Node: "stranger-named"}, time.Now())},
	} {
		t.Run(name, func(t *testing.T) {
			again.key, again.secret, again.addresses = l.key, l.secret, l.addresses
			refused := counterDelta(t, "frond_identity_refusals_total", "reason=revoked-key")
			for range again.addresses {
				again.sourceIP = newAddress()
				if th, err := again.openLink(t.Context(), nil); err == nil {
					_ = th.conn.Close()
					t.Error("it is in")
				}
			}
			awaitCounter(t, "the key", refused, 1)
		})
	}
	// A link that is already admitted cannot be used either.
	th := stealCredentials(t, stolen).mustOpenLink(t, nil)
	expectDenied(t, th, identity.VerbRenew, l.renewRequest(t), "caller")
	eventually(t, "no server of the hub has the link", func(ctx context.Context) string {
		text, err := shared.Kubectl(ctx, "", "get", "nodeidentity", l.node, "-o", "jsonpath={.spec.key}")
		if err != nil || text != "" {
			return fmt.Sprint(text, err)
		}
		return ""
	})
}
