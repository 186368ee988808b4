package callout

import (
	"context"
	"encoding/base64"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
	"go.uber.org/zap"

	api "github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/cloud/identity"
	"github.com/frond-edge/frond/streams/subject"
)

// newAuthRequest returns a request of the hub about a leaf with this key.
func newAuthRequest(tb testing.TB, hub, key nkeys.KeyPair, issuer string, change func(*jwt.AuthorizationRequestClaims)) string {
	tb.Helper()
	const nonce = "abcdefghijklmnopqrstuv"
	public := func(pair nkeys.KeyPair) string {
		text, err := pair.PublicKey()
		if err != nil {
			tb.Fatal(err)
		}
		return text
	}
	signature, err := key.Sign([]byte(nonce))
	if err != nil {
		tb.Fatal(err)
	}
	shown, err := api.EncodeCredential(api.Credential{Node: "gw-1", Key: public(key)}, signature)
	if err != nil {
		tb.Fatal(err)
	}
	claims := jwt.NewAuthorizationRequestClaims(issuer)
	claims.Audience = calloutAudience
	claims.UserNkey = public(key)
	claims.Server.ID = public(hub)
	claims.ClientInformation = jwt.ClientInformation{Host: "10.0.0.1", Kind: leafKind, Nonce: nonce}
	claims.ConnectOptions.Name = "gw-1"
	claims.ConnectOptions.SignedNonce = base64.RawURLEncoding.EncodeToString(shown)
	if change != nil {
		change(claims)
	}
	text, err := claims.Encode(hub)
	if err != nil {
		tb.Fatal(err)
	}
	return text
}

func newKeyPair(tb testing.TB, kind nkeys.PrefixByte) nkeys.KeyPair {
	tb.Helper()
	made, err := nkeys.CreatePair(kind)
	if err != nil {
		tb.Fatal(err)
	}
	return made
}

// memoryRecords are records that the test sets.
type memoryRecords map[string]*identity.Record

func (m memoryRecords) Lookup(node string) *identity.Record { return m[node] }
func (memoryRecords) IsRevoked(string) bool                 { return false }
func (memoryRecords) All() []*identity.Record               { return nil }
func (memoryRecords) Synced() <-chan struct{}               { return nil }
func (memoryRecords) AwaitKey(context.Context, string, string) {
}

// newTestCallout creates a Callout that knows these records, without a hub.
func newTestCallout(tb testing.TB, issuer nkeys.KeyPair, records memoryRecords) *Callout {
	tb.Helper()
	c, err := New(nil, issuer, identity.Policy{Cells: 4}, records, nil, nil, nil, identity.NewMetrics(nil), NewMetrics(nil), zap.NewNop())
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// BenchmarkAnswer measures what one core does to admit a link: it verifies two signatures and makes two.
func BenchmarkAnswer(b *testing.B) {
	issuer, hub, key := newKeyPair(b, nkeys.PrefixByteAccount), newKeyPair(b, nkeys.PrefixByteServer), newKeyPair(b, nkeys.PrefixByteUser)
	public, err := key.PublicKey()
	if err != nil {
		b.Fatal(err)
	}
	c := newTestCallout(b, issuer, memoryRecords{"gw-1": &identity.Record{Node: "gw-1", Key: public, Expires: time.Now().Add(time.Hour)}})
	data := []byte(newAuthRequest(b, hub, key, c.issuerKey, nil))
	for b.Loop() {
		a, reason := c.parseRequest(data)
		where, _ := c.evaluateAttempt(b.Context(), a, time.Now())
		if reason != "" || where != placeCell {
			b.Fatal(reason, where)
		}
		publish, subscribe := subject.NodePermissions(a.credential.Node)
		user, err := c.signUser(a.claims.UserNkey, a.credential.Node, "CELL-000", publish, subscribe)
		if err != nil {
			b.Fatal(err)
		}
		response := jwt.NewAuthorizationResponseClaims(a.claims.UserNkey)
		response.Audience, response.Jwt = a.claims.Server.ID, user
		if _, err := response.Encode(issuer); err != nil {
			b.Fatal(err)
		}
	}
}

func TestIsLate_ByTimeInQueue(t *testing.T) {
	question := &jwt.AuthorizationRequestClaims{}
	if isLate(question, time.Hour) {
		t.Error("late without an end")
	}
	question.IssuedAt, question.Expires = 1000, 1005 // by a clock that is far off
	if isLate(question, 5*time.Second) || !isLate(question, 6*time.Second) {
		t.Error("not by the time that the hub waits")
	}
}

func TestCallout_ReadsOnlyProvenLeafRequests(t *testing.T) {
	issuer, hub, key := newKeyPair(t, nkeys.PrefixByteAccount), newKeyPair(t, nkeys.PrefixByteServer), newKeyPair(t, nkeys.PrefixByteUser)
	c := newTestCallout(t, issuer, nil)
	for name, tt := range map[string]struct {
		change func(*jwt.AuthorizationRequestClaims)
		raw    func(string) string
		want   identity.Reason
	}{
		"a leaf":             {nil, nil, ""},
		"garbage":            {nil, func(string) string { return "x" }, identity.ReasonGarbage},
		"cut":                {nil, func(s string) string { return s[:len(s)-10] }, identity.ReasonGarbage},
		"oversized":          {nil, func(s string) string { return s + string(make([]byte, maxRequest)) }, identity.ReasonGarbage},
		"of another server":  {func(q *jwt.AuthorizationRequestClaims) { q.Server.ID = "NOTHER" }, nil, identity.ReasonGarbage},
		"for another issuer": {func(q *jwt.AuthorizationRequestClaims) { q.Subject = "AOTHER" }, nil, identity.ReasonGarbage},
		"for another use":    {func(q *jwt.AuthorizationRequestClaims) { q.Audience = "" }, nil, identity.ReasonGarbage},
		"a client":           {func(q *jwt.AuthorizationRequestClaims) { q.ClientInformation.Kind = "Client" }, nil, identity.ReasonConnection},
		"no credential":      {func(q *jwt.AuthorizationRequestClaims) { q.ConnectOptions.SignedNonce = "" }, nil, identity.ReasonNoCredential},
		"a password":         {func(q *jwt.AuthorizationRequestClaims) { q.ConnectOptions.SignedNonce = "secret!" }, nil, identity.ReasonGarbage},
		"a long credential": {func(q *jwt.AuthorizationRequestClaims) {
			q.ConnectOptions.SignedNonce = string(make([]byte, api.MaxCredentialLength+1))
		}, nil, identity.ReasonGarbage},
		"the nonce of another":   {func(q *jwt.AuthorizationRequestClaims) { q.ClientInformation.Nonce = "other" }, nil, identity.ReasonSignature},
		"the name of another":    {func(q *jwt.AuthorizationRequestClaims) { q.ConnectOptions.Name = "gw-2" }, nil, identity.ReasonServerName},
		"no name":                {func(q *jwt.AuthorizationRequestClaims) { q.ConnectOptions.Name = "" }, nil, identity.ReasonServerName},
		"no nonce":               {func(q *jwt.AuthorizationRequestClaims) { q.ClientInformation.Nonce = "" }, nil, identity.ReasonSignature},
		"a user that is no user": {func(q *jwt.AuthorizationRequestClaims) { q.UserNkey = "AX" }, nil, identity.ReasonGarbage},
	} {
		t.Run(name, func(t *testing.T) {
			text := newAuthRequest(t, hub, key, c.issuerKey, tt.change)
			if tt.raw != nil {
				text = tt.raw(text)
			}
			if _, got := c.parseRequest([]byte(text)); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
