package access

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/frond-edge/frond/api/wire"
)

// ErrUnknown reports that the data for a decision was never delivered to this gateway. It is not a refusal.
var ErrUnknown = errors.New("the cluster's keys or roles have not been delivered to this gateway")

// keySet holds the cluster's keys, as of one revision of their object in the store.
type keySet struct {
	revision  uint64
	issuers   []string
	audiences []string
	set       jose.JSONWebKeySet
}

// currentKeys returns the keys that the store holds now.
func (t *TokenAuthenticator) currentKeys() (keySet, error) {
	entry, err := t.objects.Get(wire.TokenKeysKey())
	if err != nil {
		return keySet{}, ErrUnknown
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.keys.revision == entry.Revision {
		return t.keys, nil
	}
	var o wire.TokenKeys
	if err := json.Unmarshal(entry.Object, &o); err != nil {
		return keySet{}, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	k := keySet{revision: entry.Revision, issuers: []string{o.Issuer}, audiences: o.Audiences}
	if err := json.Unmarshal(o.JWKS, &k.set); err != nil {
		return keySet{}, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	if len(k.audiences) == 0 {
		k.audiences = k.issuers // kube-apiserver's own default
	}
	t.keys = k
	return k, nil
}

// verifySignature checks a token's signature by the key it names, or by any if it names none.
func (k *keySet) verifySignature(token *jwt.JSONWebToken) (*jwt.Claims, *privateClaims, error) {
	candidates := k.set.Keys
	if id := token.Headers[0].KeyID; id != "" {
		candidates = k.set.Key(id)
	}
	for _, key := range candidates {
		if !key.IsPublic() || !key.Valid() {
			continue
		}
		var public jwt.Claims
		var claims privateClaims
		if token.Claims(key.Key, &public, &claims) == nil {
			return &public, &claims, nil
		}
	}
	return nil, nil, notAuthenticated("none of the cluster's %d keys has signed it", len(k.set.Keys))
}
