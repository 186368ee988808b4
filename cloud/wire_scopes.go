package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/controllers/scopes"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/subject"
)

// buildScopes creates the controller of scope grants. The engine is created with it and notified by it, so it is passed
// as a function; the controller must not be started before the engine is ready.
func (c *Cloud) buildScopes(ctx context.Context, nc *nats.Conn, objects cache.Cache, members *Members, engine func() *desired.Engine) (*scopes.GrantController, error) {
	clients, err := kubernetes.NewForConfig(c.rest)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	meta, err := metadata.NewForConfig(c.rest)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	kv, err := js.KeyValue(ctx, subject.RegistryBucket)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	s := c.cfg.Scopes
	return newScopeController(scopes.Config{
		Protected: c.protectedNamespaces(), PerNode: s.PerNode, Objects: s.Objects, JudgeEvery: time.Duration(s.JudgeEvery), Users: s.Users, Metrics: c.metrics,
	}, clients, meta, objects, kv, members, engine, c.log.Named("scopes"))
}

func newScopeController(cfg scopes.Config, kube kubernetes.Interface, meta metadata.Interface, objects cache.Cache, kv jetstream.KeyValue, members *Members, engine func() *desired.Engine, log *zap.Logger) (*scopes.GrantController, error) {
	return scopes.New(cfg, kube, objects, meta, scopeRegistry{kv}, scopes.NodeSource{
		IsOwned: members.Owns,
		Exists:  func(node string) bool { return engine().HasNode(node) },
		RunsServiceAccount: func(node, namespace, account string) bool {
			return engine().RunsServiceAccount(node, namespace, account)
		},
		OnChange: func(node string) { engine().RefreshScopes(node) },
	}, log)
}

// scopesHandler is the call.Handler of subject.VerbScopes.
func scopesHandler(keeper *scopes.GrantController) call.Handler {
	return func(ctx context.Context, node string, request []byte) (any, error) {
		var req wire.ScopesRequest
		if err := call.DecodeRequest(request, &req); err != nil {
			return nil, err
		}
		return keeper.HandleRequest(ctx, node, req)
	}
}

const (
	// keysInterval is how often the token keys are read from the apiserver. Rotation keeps old keys for at least as
	// long as tokens signed by them are valid, so a new key only has to arrive before many of its tokens do.
	keysInterval = time.Minute
	// keysTimeout bounds the request.
	keysTimeout = 10 * time.Second
	// keysRetry is the pause after a failed request.
	keysRetry = 5 * time.Second
)

// tokenKeyPublisher publishes the keys that verify service-account tokens to every node.
type tokenKeyPublisher struct {
	kube kubernetes.Interface
	// audiences are those of valid tokens; none: the issuer.
	audiences []string
	publish   func(key wire.Key, object []byte)
	log       *zap.Logger
}

// keysRules returns the RBAC rules that tokenKeyPublisher needs.
func keysRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{
		NonResourceURLs: []string{"/.well-known/openid-configuration", "/openid/v1/jwks"}, Verbs: []string{"get"},
	}}
}

// Start reads and publishes the keys until ctx ends and then returns nil. The last keys stay valid while the apiserver
// cannot be asked.
func (k *tokenKeyPublisher) Start(ctx context.Context) error {
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

func (k *tokenKeyPublisher) fetchKeys(ctx context.Context) ([]byte, error) {
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
