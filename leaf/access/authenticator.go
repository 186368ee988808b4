package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	credentials "k8s.io/apiserver/pkg/authentication/token/jwt"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// DefaultExpiryGrace is three months: longer than any planned outage, but not unlimited.
const DefaultExpiryGrace = 90 * 24 * time.Hour

// deletedLeeway is how long after its deletion time an object still counts, as in kube-apiserver.
const deletedLeeway = time.Minute

// ErrNotAuthenticated reports that a token identifies no user on this gateway. The text beside it is for the gateway's log.
var ErrNotAuthenticated = errors.New("not authenticated")

// ExpiredError reports that a token was valid once. Its bearer may be told.
type ExpiredError struct {
	// At is the token's expiry time.
	At time.Time
}

func (e *ExpiredError) Error() string {
	return fmt.Sprintf("the service account token expired at %s; this gateway accepts an expired token only from a pod that lives "+
		"here, for a limited time, and only while there is no newer one", e.At.UTC().Format(time.RFC3339))
}

// Is makes an ExpiredError an ErrNotAuthenticated.
func (e *ExpiredError) Is(target error) bool { return target == ErrNotAuthenticated }

// Objects is the part of the store that this package needs. Concurrent calls are allowed.
type Objects interface {
	Get(key wire.Key) (store.Entry, error)
	List(group, resource, namespace string) ([]store.Entry, uint64)
}

// Config configures a TokenAuthenticator.
type Config struct {
	// Node is the gateway's own name.
	Node string
	// ExpiryGrace is how long after its expiry a token that could not be renewed is accepted; 0 is DefaultExpiryGrace, below 0 never.
	ExpiryGrace time.Duration
	// IsNewest reports whether a token is the newest that this gateway got for a pod; nil: no token is.
	IsNewest func(pod wire.Key, uid, token string) bool
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// TokenAuthenticator checks tokens of service accounts.
type TokenAuthenticator struct {
	cfg     Config
	objects Objects

	mu             sync.Mutex // guards all below
	keys           keySet
	newestIssuedAt time.Time // newest time of issue in a validly signed token
}

// NewTokenAuthenticator returns an authenticator that reads objects at each call.
func NewTokenAuthenticator(cfg Config, objects Objects) *TokenAuthenticator {
	if cfg.ExpiryGrace == 0 {
		cfg.ExpiryGrace = DefaultExpiryGrace
	}
	if cfg.IsNewest == nil {
		cfg.IsNewest = func(wire.Key, string, string) bool { return false }
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &TokenAuthenticator{cfg: cfg, objects: objects}
}

// objectReference is an object that a token is bound to.
type objectReference struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// privateClaims are Kubernetes' claims in its tokens beside the registered claims.
type privateClaims struct {
	Kubernetes struct {
		Namespace string           `json:"namespace"`
		Account   objectReference  `json:"serviceaccount"`
		Pod       *objectReference `json:"pod"`
		Secret    *objectReference `json:"secret"`
		Node      *objectReference `json:"node"`
		// A token that is bound to a webhook's configuration is for that webhook, which is no client of a gateway.
		Validating *objectReference `json:"validatingwebhookconfiguration"`
		Mutating   *objectReference `json:"mutatingwebhookconfiguration"`
	} `json:"kubernetes.io"`
}

// Authenticate returns the user of a token. Its error is ErrNotAuthenticated, ErrUnknown if the keys were never delivered,
// or an *ExpiredError.
func (t *TokenAuthenticator) Authenticate(ctx context.Context, token string) (user.Info, error) {
	u, _, err := t.AuthenticateFor(ctx, token, nil)
	return u, err
}

// AuthenticateFor is Authenticate for other audiences than the apiserver's; an empty list means the apiserver's own. It
// returns those that the token is meant for.
func (t *TokenAuthenticator) AuthenticateFor(_ context.Context, token string, audiences []string) (u user.Info, meant []string, err error) {
	keys, err := t.currentKeys()
	if err != nil {
		return nil, nil, err
	}
	if len(audiences) == 0 {
		audiences = keys.audiences
	}
	parsed, err := jwt.ParseSigned(token, signingAlgorithms())
	if err != nil {
		return nil, nil, notAuthenticated("it is no signed token: %w", err)
	}
	public, claims, err := keys.verifySignature(parsed)
	if err != nil {
		return nil, nil, err
	}
	for _, a := range audiences {
		if slices.Contains(public.Audience, a) {
			meant = append(meant, a)
		}
	}
	if len(meant) == 0 {
		return nil, nil, notAuthenticated("audience %q is none of %q", public.Audience, audiences)
	}
	if u, err = t.evaluateClaims(token, keys, public, claims); err != nil {
		return nil, nil, err
	}
	return u, meant, nil
}

// evaluateClaims checks all claims of a signed token except its audience.
func (t *TokenAuthenticator) evaluateClaims(token string, keys keySet, public *jwt.Claims, claims *privateClaims) (user.Info, error) {
	if !slices.Contains(keys.issuers, public.Issuer) {
		return nil, notAuthenticated("issuer %q is not the cluster's", public.Issuer)
	}
	if want := serviceaccount.MakeUsername(claims.Kubernetes.Namespace, claims.Kubernetes.Account.Name); public.Subject != want {
		return nil, notAuthenticated("subject %q is not %q", public.Subject, want)
	}
	now := t.trustedNow(public)
	info, err := t.checkBindings(claims, now)
	if err != nil {
		return nil, err
	}
	if err := t.checkExpiry(token, public, claims, now); err != nil {
		return nil, err
	}
	if public.ID != "" {
		info.CredentialID = credentials.CredentialIDForJTI(public.ID)
	}
	return info.UserInfo(), nil
}

// signingAlgorithms returns the algorithms that kube-apiserver signs with.
func signingAlgorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384, jose.ES512}
}

func notAuthenticated(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrNotAuthenticated, fmt.Errorf(format, args...))
}

// trustedNow returns the gateway's clock, but not before any time at which the cluster has signed a token: a gateway
// without a battery boots in 1970. So "not valid yet" is never the token's fault, and is not checked.
func (t *TokenAuthenticator) trustedNow(public *jwt.Claims) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if public.IssuedAt != nil && public.IssuedAt.Time().After(t.newestIssuedAt) {
		t.newestIssuedAt = public.IssuedAt.Time()
	}
	if now := t.cfg.Now(); now.After(t.newestIssuedAt) {
		return now
	}
	return t.newestIssuedAt
}

// checkExpiry checks a token's expiry.
func (t *TokenAuthenticator) checkExpiry(token string, public *jwt.Claims, claims *privateClaims, now time.Time) error {
	if public.Expiry == nil {
		if claims.Kubernetes.Secret != nil {
			return nil // legacy tokens, which are valid as long as their Secret
		}
		return notAuthenticated("it has no end")
	}
	end := public.Expiry.Time()
	if !now.After(end) {
		return nil
	}
	if p := claims.Kubernetes.Pod; p != nil && now.Before(end.Add(t.cfg.ExpiryGrace)) {
		pod := wire.Key{Resource: "pods", Namespace: claims.Kubernetes.Namespace, Name: p.Name}
		if t.cfg.IsNewest(pod, p.UID, token) {
			return nil
		}
	}
	return &ExpiredError{At: end}
}

// checkBindings checks all objects that a token is bound to.
func (t *TokenAuthenticator) checkBindings(claims *privateClaims, now time.Time) (*serviceaccount.ServiceAccountInfo, error) {
	k := claims.Kubernetes
	info := &serviceaccount.ServiceAccountInfo{Namespace: k.Namespace, Name: k.Account.Name, UID: k.Account.UID}
	if k.Validating != nil || k.Mutating != nil {
		return nil, notAuthenticated("it is bound to a webhook")
	}
	if err := t.checkBoundObject("serviceaccounts", k.Namespace, &k.Account, now, nil); err != nil {
		return nil, err
	}
	if k.Secret != nil {
		if err := t.checkBoundObject("secrets", k.Namespace, k.Secret, now, nil); err != nil {
			return nil, err
		}
	}
	if k.Pod != nil {
		here := func(o *boundObject) error {
			switch {
			case o.Spec.ServiceAccountName != k.Account.Name:
				return notAuthenticated("pod %s/%s is of another service account", k.Namespace, k.Pod.Name)
			case o.Spec.NodeName != t.cfg.Node:
				return notAuthenticated("pod %s/%s is of another node", k.Namespace, k.Pod.Name)
			}
			return nil
		}
		if err := t.checkBoundObject("pods", k.Namespace, k.Pod, now, here); err != nil {
			return nil, err
		}
		info.PodName, info.PodUID = k.Pod.Name, k.Pod.UID
	}
	if k.Node != nil {
		if k.Node.Name != t.cfg.Node {
			return nil, notAuthenticated("it is bound to node %s", k.Node.Name)
		}
		if k.Pod == nil {
			if err := t.checkBoundObject("nodes", "", k.Node, now, nil); err != nil {
				return nil, err
			}
		}
		info.NodeName, info.NodeUID = k.Node.Name, k.Node.UID
	}
	return info, nil
}

// boundObject holds the fields that are read from an object to which a token is bound.
type boundObject struct {
	Metadata struct {
		UID               string     `json:"uid"`
		DeletionTimestamp *time.Time `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec struct {
		NodeName           string `json:"nodeName"`
		ServiceAccountName string `json:"serviceAccountName"`
	} `json:"spec"`
}

// checkBoundObject requires an object in the store, with the UID of the reference, and not deleted.
func (t *TokenAuthenticator) checkBoundObject(resource, namespace string, r *objectReference, now time.Time, also func(*boundObject) error) error {
	key := wire.Key{Resource: resource, Namespace: namespace, Name: r.Name}
	entry, err := t.objects.Get(key)
	if err != nil {
		return notAuthenticated("its %s is not on this gateway", key.Human())
	}
	var o boundObject
	if err := json.Unmarshal(entry.Object, &o); err != nil {
		return notAuthenticated("its %s: %w", key.Human(), err)
	}
	switch at := o.Metadata.DeletionTimestamp; {
	case r.UID == "" || o.Metadata.UID != r.UID:
		return notAuthenticated("its %s had another UID", key.Human())
	case at != nil && at.Before(now.Add(-deletedLeeway)):
		return notAuthenticated("its %s is deleted", key.Human())
	case also != nil:
		return also(&o)
	}
	return nil
}
