package identity

import (
	"testing"
	"time"

	"github.com/frond-edge/frond/api/identity"
)

func TestDecidePlace(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const node, key, old, other = "gw-1", "UKEY", "UOLD", "UOTHER"
	const secret = "0123456789abcdef"
	record := func(change func(*Record)) *Record {
		r := &Record{Node: node, Key: key, Expires: now.Add(time.Hour)}
		if change != nil {
			change(r)
		}
		return r
	}
	good := func(change func(*identity.Token)) *identity.Token {
		token := &identity.Token{ID: "abcdef", Secret: secret, Uses: 1, Expires: now.Add(time.Hour)}
		if change != nil {
			change(token)
		}
		return token
	}
	revokedNode := record(func(r *Record) { r.RevokedAt, r.Key = now, "" })
	for name, tt := range map[string]struct {
		key     string // if not key
		record  *Record
		revoked bool
		token   *identity.Token
		secret  string // "" presents no token
		locked  bool
		late    bool // tokens are not read yet
		where   placement
		why     Reason
	}{
		"known":                          {record: record(nil), where: placeCell},
		"known, with its old token":      {record: record(nil), secret: secret, where: placeCell},
		"known, others guess":            {record: record(nil), secret: secret, locked: true, where: placeCell},
		"known, tokens not read":         {record: record(nil), secret: secret, late: true, where: placeCell},
		"key before, answer lost":        {key: old, record: record(func(r *Record) { r.Previous = old }), where: placeCell},
		"expired":                        {record: record(func(r *Record) { r.Expires = now }), where: placeLobby},
		"expired long ago: told there":   {record: record(func(r *Record) { r.Expires = now.AddDate(-9, 0, 0) }), where: placeLobby},
		"expired, key before":            {key: old, record: record(func(r *Record) { r.Previous, r.Expires = old, now }), where: placeLobby},
		"revoked key":                    {record: record(nil), revoked: true, where: placeRefused, why: ReasonRevokedKey},
		"revoked key, with a token":      {revoked: true, token: good(nil), secret: secret, where: placeRefused, why: ReasonRevokedKey},
		"revoked node":                   {record: revokedNode, where: placeRefused, why: ReasonRevokedNode},
		"revoked node, any token":        {key: other, record: revokedNode, token: good(nil), secret: secret, where: placeRefused, why: ReasonRevokedNode},
		"revoked node, token for it":     {key: other, record: revokedNode, token: good(func(k *identity.Token) { k.Node = node }), secret: secret, where: placeLobby},
		"revoked node, wrong token":      {key: other, record: revokedNode, token: good(func(k *identity.Token) { k.Node = node }), secret: "x", where: placeRefused, why: ReasonTokenWrong},
		"unknown":                        {where: placeRefused, why: ReasonUnknown},
		"other key":                      {key: other, record: record(nil), where: placeRefused, why: ReasonOtherKey},
		"record without a key":           {key: "", record: record(func(r *Record) { r.Key = "" }), where: placeRefused, why: ReasonOtherKey},
		"token":                          {token: good(nil), secret: secret, where: placeLobby},
		"token, name taken: told there":  {key: other, record: record(nil), token: good(nil), secret: secret, where: placeLobby},
		"token that never expires":       {token: good(func(k *identity.Token) { k.Expires = time.Time{} }), secret: secret, where: placeLobby},
		"token of another id":            {secret: secret, where: placeRefused, why: ReasonTokenUnknown},
		"token not read yet":             {secret: secret, late: true, where: placeRefused, why: ReasonNotReady},
		"wrong secret":                   {token: good(nil), secret: "0123456789abcdeX", where: placeRefused, why: ReasonTokenWrong},
		"shorter secret":                 {token: good(nil), secret: "0", where: placeRefused, why: ReasonTokenWrong},
		"token expired":                  {token: good(func(k *identity.Token) { k.Expires = now }), secret: secret, where: placeRefused, why: ReasonTokenExpired},
		"token of another node":          {token: good(func(k *identity.Token) { k.Node = "gw-2" }), secret: secret, where: placeRefused, why: ReasonTokenNode},
		"token used up":                  {token: good(func(k *identity.Token) { k.Used = []string{"gw-2=UX"} }), secret: secret, where: placeRefused, why: ReasonTokenUsed},
		"token used up, by this one":     {token: good(func(k *identity.Token) { k.Used = []string{node + "=" + key} }), secret: secret, where: placeLobby},
		"token used by it, with a key":   {key: other, token: good(func(k *identity.Token) { k.Used = []string{node + "=" + key} }), secret: secret, where: placeRefused, why: ReasonTokenUsed},
		"token for many, used by some":   {token: good(func(k *identity.Token) { k.Uses, k.Used = 0, []string{"a=b", "c=d"} }), secret: secret, where: placeLobby},
		"too many guesses":               {token: good(nil), secret: secret, locked: true, where: placeRefused, why: ReasonLocked},
		"wrong secret, used up: no hint": {token: good(func(k *identity.Token) { k.Used = []string{"a=b"} }), secret: "x", where: placeRefused, why: ReasonTokenWrong},
	} {
		t.Run(name, func(t *testing.T) {
			in := decisionInput{
				now: now, credential: identity.Credential{Node: node, Key: key}, record: tt.record, revoked: tt.revoked,
				token: tt.token, secret: tt.secret, locked: tt.locked, tokensReady: !tt.late,
			}
			if tt.key != "" {
				in.credential.Key = tt.key
			}
			if tt.secret != "" {
				in.credential.Token = "abcdef." + tt.secret
			}
			if where, why := decidePlace(in); where != tt.where || why != tt.why {
				t.Errorf("%s %q, want %s %q", where, why, tt.where, tt.why)
			}
		})
	}
}

func TestIsNodeName(t *testing.T) {
	for name, want := range map[string]bool{
		"gw-1": true, "gw.site.example": true, "": false, "GW": false, "a_b": false, "a b": false, "a.*": false, ">": false,
		"UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4": false,
	} {
		if got := isNodeName(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

func TestTokenThrottle_LocksTheGuesserFirst(t *testing.T) {
	now := time.Unix(1000, 0)
	var locked []string
	g := newTokenThrottle(func() time.Time { return now }, func(by string) { locked = append(locked, by) })
	for range maxPerAddressAndToken {
		if !g.allow("10.0.0.1", "aaaaaa") {
			t.Fatal("locked too soon")
		}
		g.recordFailure("10.0.0.1", "aaaaaa")
	}
	if g.allow("10.0.0.1", "aaaaaa") {
		t.Error("not locked")
	}
	if !g.allow("10.0.0.1", "bbbbbb") || !g.allow("10.0.0.2", "aaaaaa") {
		t.Error("others are locked, too")
	}
	for i := range maxPerToken { // a guesser with a /48
		g.recordFailure("2001:db8:0:"+string("0123456789abcdef"[i%16])+"::1", "aaaaaa")
	}
	if g.allow("10.0.0.3", "aaaaaa") {
		t.Error("a token that all guess at is not locked")
	}
	if len(locked) != 2 || locked[0] != "address-and-token" || locked[1] != "token" {
		t.Errorf("told: %v", locked)
	}
	now = now.Add(throttleSpan)
	if !g.allow("10.0.0.1", "aaaaaa") {
		t.Error("locked for ever")
	}
	for i := range maxThrottleEntries + 100 { // as many addresses as there are
		g.recordFailure(networkOf("10."+string(rune('a'+i%26)))+time.Duration(i).String(), "cccccc")
	}
	if n := len(g.failures); n > maxThrottleEntries+3 {
		t.Errorf("%d entries are kept", n)
	}
}

func TestNetworkOf(t *testing.T) {
	for from, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "2001:db8:1:2:3::4": "2001:db8:1:2::/64", "[2001:db8:1:2:9::4]": "2001:db8:1:2::/64",
		"fe80::1%eth0": "fe80::/64", "::ffff:10.0.0.1": "::ffff:10.0.0.1", "": "", "x": "x",
	} {
		if got := networkOf(from); got != want {
			t.Errorf("%q: %q, want %q", from, got, want)
		}
	}
}
