package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/wire"
)

const (
	// keysInterval is how often the token keys are read from the apiserver. Rotation keeps old keys for at least as
	// long as tokens signed by them are valid, so a new key only has to arrive before many of its tokens do.
	keysInterval = time.Minute
	// keysTimeout bounds the request.
	keysTimeout = 10 * time.Second
	// keysRetry is the pause after a failed request.
	keysRetry = 5 * time.Second
)

// TokenKeyPublisher publishes the keys that verify service-account tokens to every node.
type TokenKeyPublisher struct {
	kube kubernetes.Interface
	// audiences are those of valid tokens; none: the issuer.
	audiences []string
	publish   func(key wire.Key, object []byte)
	log       *zap.Logger
}

// NewTokenKeyPublisher creates the publisher. publish must not block; no audiences mean the issuer.
func NewTokenKeyPublisher(kube kubernetes.Interface, audiences []string, publish func(key wire.Key, object []byte), log *zap.Logger) *TokenKeyPublisher {
	return &TokenKeyPublisher{kube: kube, audiences: audiences, publish: publish, log: log}
}

// tokenKeyRules returns the RBAC rules that TokenKeyPublisher needs.
func tokenKeyRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{
		NonResourceURLs: []string{"/.well-known/openid-configuration", "/openid/v1/jwks"}, Verbs: []string{"get"},
	}}
}

// Start reads and publishes the keys until ctx ends and then returns nil. The last keys stay valid while the apiserver
// cannot be asked.
func (k *TokenKeyPublisher) Start(ctx context.Context) error {
	for {
		pause := keysInterval
		switch object, err := k.fetchKeys(ctx); {
		case err == nil:
			k.publish(wire.TokenKeysKey(), object)
		case ctx.Err() == nil:
			pause = keysRetry
			k.log.Warn("keys of tokens not read, gateways keep those they have", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func (k *TokenKeyPublisher) fetchKeys(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()
	get := k.kube.Discovery().RESTClient().Get
	about, err := get().AbsPath("/.well-known/openid-configuration").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the issuer: %w", err)
	}
	var issuer struct {
		Issuer string `json:"issuer"`
	}
	if err := json.Unmarshal(about, &issuer); err != nil || issuer.Issuer == "" {
		return nil, fmt.Errorf("read the issuer: %w", errors.Join(err, errors.New("no issuer in the apiserver's answer")))
	}
	set, err := get().AbsPath("/openid/v1/jwks").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the keys: %w", err)
	}
	var keys struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(set, &keys); err != nil || len(keys.Keys) == 0 {
		return nil, fmt.Errorf("read the keys: %w", errors.Join(err, errors.New("no key in the apiserver's answer")))
	}
	audiences := k.audiences
	if len(audiences) == 0 {
		audiences = []string{issuer.Issuer}
	}
	object, err := json.Marshal(wire.TokenKeys{
		APIVersion: "frond.io/v1", Kind: "TokenKeys", Metadata: wire.ScopeMarkMeta{Name: wire.TokenKeysKey().Name},
		Issuer: issuer.Issuer, Audiences: audiences, JWKS: set,
	})
	if err != nil {
		return nil, fmt.Errorf("encode the keys: %w", err)
	}
	return object, nil
}
