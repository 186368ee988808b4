// Package accesstest signs tokens of service accounts as a kube-apiserver does, for tests of the packages that check them.
package accesstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/frond-edge/frond/api/wire"
)

// Issuer signs a cluster's tokens.
type Issuer struct {
	tb     testing.TB
	name   string
	key    *ecdsa.PrivateKey
	signer jose.Signer
}

// keyID is the id of the only key of an Issuer.
const keyID = "key-1"

// New returns an issuer with a key of its own. Two issuers have keys of the same id.
func New(tb testing.TB, name string) *Issuer {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: keyID}}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return &Issuer{tb: tb, name: name, key: key, signer: signer}
}

// Keys returns the object with which a gateway verifies the issuer's tokens.
func (i *Issuer) Keys() []byte {
	i.tb.Helper()
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{Key: i.key.Public(), KeyID: keyID, Algorithm: string(jose.ES256), Use: "sig"},
	}})
	if err != nil {
		i.tb.Fatal(err)
	}
	key := wire.TokenKeysKey()
	data, err := json.Marshal(wire.TokenKeys{
		APIVersion: "frond.io/v1", Kind: "TokenKeys", Metadata: wire.ScopeMarkMeta{Name: key.Name},
		Issuer: i.name, Audiences: []string{i.name}, JWKS: set,
	})
	if err != nil {
		i.tb.Fatal(err)
	}
	return data
}

// Claims are the claims of a token; its zero optional fields are omitted.
type Claims struct {
	Namespace, Account, AccountUID string
	Pod, PodUID                    string
	Node, NodeUID                  string
	Secret, SecretUID              string
	// Audience defaults to the issuer's own, Issued to now, and Life to an hour.
	Audience string
	Issued   time.Time
	Life     time.Duration
	// Issuer, Subject replace the true ones.
	Issuer, Subject string
}

// Token signs claims.
func (i *Issuer) Token(c Claims) string {
	i.tb.Helper()
	if c.Audience == "" {
		c.Audience = i.name
	}
	if c.Issued.IsZero() {
		c.Issued = time.Now()
	}
	if c.Life == 0 {
		c.Life = time.Hour
	}
	if c.Issuer == "" {
		c.Issuer = i.name
	}
	if c.Subject == "" {
		c.Subject = "system:serviceaccount:" + c.Namespace + ":" + c.Account
	}
	type ref map[string]string
	bound := map[string]any{"namespace": c.Namespace, "serviceaccount": ref{"name": c.Account, "uid": c.AccountUID}}
	for kind, r := range map[string]ref{
		"pod": {"name": c.Pod, "uid": c.PodUID}, "node": {"name": c.Node, "uid": c.NodeUID}, "secret": {"name": c.Secret, "uid": c.SecretUID},
	} {
		if r["name"] != "" {
			bound[kind] = r
		}
	}
	token, err := jwt.Signed(i.signer).Claims(jwt.Claims{
		Issuer: c.Issuer, Subject: c.Subject, Audience: jwt.Audience{c.Audience}, ID: "jti-1",
		IssuedAt: jwt.NewNumericDate(c.Issued), NotBefore: jwt.NewNumericDate(c.Issued), Expiry: jwt.NewNumericDate(c.Issued.Add(c.Life)),
	}).Claims(map[string]any{"kubernetes.io": bound}).Serialize()
	if err != nil {
		i.tb.Fatal(err)
	}
	return token
}
