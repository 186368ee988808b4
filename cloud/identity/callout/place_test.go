package callout

import (
	"testing"
	"time"

	api "github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/cloud/identity"
)

func TestDecidePlace(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const node, key, old, other = "gw-1", "UKEY", "UOLD", "UOTHER"
	const secret = "0123456789abcdef"
	record := func(change func(*identity.Record)) *identity.Record {
		r := &identity.Record{Node: node, Key: key, Expires: now.Add(time.Hour)}
		if change != nil {
			change(r)
		}
		return r
	}
	good := func(change func(*api.Token)) *api.Token {
		token := &api.Token{ID: "abcdef", Secret: secret, Uses: 1, Expires: now.Add(time.Hour)}
		if change != nil {
			change(token)
		}
		return token
	}
	revokedNode := record(func(r *identity.Record) { r.RevokedAt, r.Key = now, "" })
	for name, tt := range map[string]struct {
		key     string // if not key
		record  *identity.Record
		revoked bool
		token   *api.Token
		secret  string // "" presents no token
		locked  bool
		late    bool // tokens are not read yet
		where   placement
		why     identity.Reason
	}{
		"known":                          {record: record(nil), where: placeCell},
		"known, with its old token":      {record: record(nil), secret: secret, where: placeCell},
		"known, others guess":            {record: record(nil), secret: secret, locked: true, where: placeCell},
		"known, tokens not read":         {record: record(nil), secret: secret, late: true, where: placeCell},
		"key before, answer lost":        {key: old, record: record(func(r *identity.Record) { r.Previous = old }), where: placeCell},
		"expired":                        {record: record(func(r *identity.Record) { r.Expires = now }), where: placeLobby},
		"expired long ago: told there":   {record: record(func(r *identity.Record) { r.Expires = now.AddDate(-9, 0, 0) }), where: placeLobby},
		"expired, key before":            {key: old, record: record(func(r *identity.Record) { r.Previous, r.Expires = old, now }), where: placeLobby},
		"revoked key":                    {record: record(nil), revoked: true, where: placeRefused, why: identity.ReasonRevokedKey},
		"revoked key, with a token":      {revoked: true, token: good(nil), secret: secret, where: placeRefused, why: identity.ReasonRevokedKey},
		"revoked node":                   {record: revokedNode, where: placeRefused, why: identity.ReasonRevokedNode},
		"revoked node, any token":        {key: other, record: revokedNode, token: good(nil), secret: secret, where: placeRefused, why: identity.ReasonRevokedNode},
		"revoked node, token for it":     {key: other, record: revokedNode, token: good(func(k *api.Token) { k.Node = node }), secret: secret, where: placeLobby},
		"revoked node, wrong token":      {key: other, record: revokedNode, token: good(func(k *api.Token) { k.Node = node }), secret: "x", where: placeRefused, why: identity.ReasonTokenWrong},
		"unknown":                        {where: placeRefused, why: identity.ReasonUnknown},
		"other key":                      {key: other, record: record(nil), where: placeRefused, why: identity.ReasonOtherKey},
		"record without a key":           {key: "", record: record(func(r *identity.Record) { r.Key = "" }), where: placeRefused, why: identity.ReasonOtherKey},
		"token":                          {token: good(nil), secret: secret, where: placeLobby},
		"token, name taken: told there":  {key: other, record: record(nil), token: good(nil), secret: secret, where: placeLobby},
		"token that never expires":       {token: good(func(k *api.Token) { k.Expires = time.Time{} }), secret: secret, where: placeLobby},
		"token of another id":            {secret: secret, where: placeRefused, why: identity.ReasonTokenUnknown},
		"token not read yet":             {secret: secret, late: true, where: placeRefused, why: identity.ReasonNotReady},
		"wrong secret":                   {token: good(nil), secret: "0123456789abcdeX", where: placeRefused, why: identity.ReasonTokenWrong},
		"shorter secret":                 {token: good(nil), secret: "0", where: placeRefused, why: identity.ReasonTokenWrong},
		"token expired":                  {token: good(func(k *api.Token) { k.Expires = now }), secret: secret, where: placeRefused, why: identity.ReasonTokenExpired},
		"token of another node":          {token: good(func(k *api.Token) { k.Node = "gw-2" }), secret: secret, where: placeRefused, why: identity.ReasonTokenNode},
		"token used up":                  {token: good(func(k *api.Token) { k.Used = []string{"gw-2=UX"} }), secret: secret, where: placeRefused, why: identity.ReasonTokenUsed},
		"token used up, by this one":     {token: good(func(k *api.Token) { k.Used = []string{node + "=" + key} }), secret: secret, where: placeLobby},
		"token used by it, with a key":   {key: other, token: good(func(k *api.Token) { k.Used = []string{node + "=" + key} }), secret: secret, where: placeRefused, why: identity.ReasonTokenUsed},
		"token for many, used by some":   {token: good(func(k *api.Token) { k.Uses, k.Used = 0, []string{"a=b", "c=d"} }), secret: secret, where: placeLobby},
		"too many guesses":               {token: good(nil), secret: secret, locked: true, where: placeRefused, why: identity.ReasonLocked},
		"wrong secret, used up: no hint": {token: good(func(k *api.Token) { k.Used = []string{"a=b"} }), secret: "x", where: placeRefused, why: identity.ReasonTokenWrong},
	} {
		t.Run(name, func(t *testing.T) {
			in := decisionInput{
				now: now, credential: api.Credential{Node: node, Key: key}, record: tt.record, revoked: tt.revoked,
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
