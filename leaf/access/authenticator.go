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

// DefaultExpired is three months: longer than any outage that somebody means to bridge, and not for ever.
const DefaultExpired = 90 * 24 * time.Hour

// deletedLeeway is how long after its deletion's time an object still counts, as in kube-apiserver.
const deletedLeeway = time.Minute

// ErrNobody says that a token does not name anyone on this gateway. The text beside it is for the gateway's log.
var ErrNobody = errors.New("not authenticated")

// ExpiredError says that a token was good once. It may be told to its bearer.
type ExpiredError struct {
	// At is when it expired.
	At time.Time
}

func (e *ExpiredError) Error() string {
	return fmt.Sprintf("the service account token expired at %s; this gateway accepts an expired token only from a pod that lives "+
		"here, for a limited time, and only while there is no newer one", e.At.UTC().Format(time.RFC3339))
}

// Is makes an ExpiredError an ErrNobody.
func (e *ExpiredError) Is(target error) bool { return target == ErrNobody }

// Objects is the store as far as it is needed here. Concurrent calls are fine.
type Objects interface {
	Get(key wire.Key) (store.Entry, error)
	List(group, resource, namespace string) ([]store.Entry, uint64)
}

// Config of Tokens.
type Config struct {
	// Node is the gateway's own name.
	Node string
	// Expired is how long after its end a token is accepted that nobody could renew; 0 is DefaultExpired, below 0 never.
	Expired time.Duration
	// Newest tells whether a token is the newest that this gateway got for a pod; nil: of no token.
	Newest func(pod wire.Key, uid, token string) bool
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Tokens checks tokens of service accounts.
type Tokens struct {
	cfg     Config
	objects Objects

	mu    sync.Mutex // guards all below
	keys  keys
	floor time.Time // newest time of issue that a valid signature has shown
}

// NewTokens makes a checker over what objects holds at each call.
func NewTokens(cfg Config, objects Objects) *Tokens {
	if cfg.Expired == 0 {
		cfg.Expired = DefaultExpired
	}
	if cfg.Newest == nil {
		cfg.Newest = func(wire.Key, string, string) bool { return false }
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Tokens{cfg: cfg, objects: objects}
}

// reference is an object that a token is bound to.
type reference struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// private is what Kubernetes writes into its tokens beside the registered claims.
type private struct {
	Kubernetes struct {
		Namespace string     `json:"namespace"`
		Account   reference  `json:"serviceaccount"`
		Pod       *reference `json:"pod"`
		Secret    *reference `json:"secret"`
		Node      *reference `json:"node"`
		// A token that is bound to a webhook's configuration is for that webhook, which is no client of a gateway.
		Validating *reference `json:"validatingwebhookconfiguration"`
		Mutating   *reference `json:"mutatingwebhookconfiguration"`
	} `json:"kubernetes.io"`
}

// Check says whose token it is. Its error is ErrNobody, ErrUnknown when the keys were never delivered, or an *ExpiredError.
func (t *Tokens) Check(ctx context.Context, token string) (user.Info, error) {
	u, _, err := t.For(ctx, token, nil)
	return u, err
}

// For is Check for other audiences than the apiserver's; none are its own. It returns those that the token is meant for.
func (t *Tokens) For(_ context.Context, token string, audiences []string) (u user.Info, meant []string, err error) {
	keys, err := t.current()
	if err != nil {
		return nil, nil, err
	}
	if len(audiences) == 0 {
		audiences = keys.audiences
	}
	parsed, err := jwt.ParseSigned(token, algorithms())
	if err != nil {
		return nil, nil, nobody("it is no signed token: %w", err)
	}
	public, claims, err := keys.verify(parsed)
	if err != nil {
		return nil, nil, err
	}
	for _, a := range audiences {
		if slices.Contains(public.Audience, a) {
			meant = append(meant, a)
		}
	}
	if len(meant) == 0 {
		return nil, nil, nobody("audience %q is none of %q", public.Audience, audiences)
	}
	if u, err = t.whose(token, keys, public, claims); err != nil {
		return nil, nil, err
	}
	return u, meant, nil
}

// whose judges all of a token that is signed but its audience.
func (t *Tokens) whose(token string, keys keys, public *jwt.Claims, claims *private) (user.Info, error) {
	if !slices.Contains(keys.issuers, public.Issuer) {
		return nil, nobody("issuer %q is not the cluster's", public.Issuer)
	}
	if want := serviceaccount.MakeUsername(claims.Kubernetes.Namespace, claims.Kubernetes.Account.Name); public.Subject != want {
		return nil, nobody("subject %q is not %q", public.Subject, want)
	}
	now := t.now(public)
	info, err := t.bound(claims, now)
	if err != nil {
		return nil, err
	}
	if err := t.inTime(token, public, claims, now); err != nil {
		return nil, err
	}
	if public.ID != "" {
		info.CredentialID = credentials.CredentialIDForJTI(public.ID)
	}
	return info.UserInfo(), nil
}

// algorithms are those that kube-apiserver signs with.
func algorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384, jose.ES512}
}

func nobody(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrNobody, fmt.Errorf(format, args...))
}

// now is the gateway's clock, but not before any time at which the cluster has signed something: a gateway without a
// battery wakes up in 1970. So "not valid yet" is never the token's fault, and is not asked.
func (t *Tokens) now(public *jwt.Claims) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if public.IssuedAt != nil && public.IssuedAt.Time().After(t.floor) {
		t.floor = public.IssuedAt.Time()
	}
	if now := t.cfg.Now(); now.After(t.floor) {
		return now
	}
	return t.floor
}

// inTime judges a token's end.
func (t *Tokens) inTime(token string, public *jwt.Claims, claims *private, now time.Time) error {
	if public.Expiry == nil {
		if claims.Kubernetes.Secret != nil {
			return nil // the tokens of old, which live as long as their Secret
		}
		return nobody("it has no end")
	}
	end := public.Expiry.Time()
	if !now.After(end) {
		return nil
	}
	if p := claims.Kubernetes.Pod; p != nil && now.Before(end.Add(t.cfg.Expired)) {
		pod := wire.Key{Resource: "pods", Namespace: claims.Kubernetes.Namespace, Name: p.Name}
		if t.cfg.Newest(pod, p.UID, token) {
			return nil
		}
	}
	return &ExpiredError{At: end}
}

// bound finds all that a token is bound to.
func (t *Tokens) bound(claims *private, now time.Time) (*serviceaccount.ServiceAccountInfo, error) {
	k := claims.Kubernetes
	info := &serviceaccount.ServiceAccountInfo{Namespace: k.Namespace, Name: k.Account.Name, UID: k.Account.UID}
	if k.Validating != nil || k.Mutating != nil {
		return nil, nobody("it is bound to a webhook")
	}
	if err := t.lives("serviceaccounts", k.Namespace, &k.Account, now, nil); err != nil {
		return nil, err
	}
	if k.Secret != nil {
		if err := t.lives("secrets", k.Namespace, k.Secret, now, nil); err != nil {
			return nil, err
		}
	}
	if k.Pod != nil {
		here := func(o *bindable) error {
			switch {
			case o.Spec.ServiceAccountName != k.Account.Name:
				return nobody("pod %s/%s is of another service account", k.Namespace, k.Pod.Name)
			case o.Spec.NodeName != t.cfg.Node:
				return nobody("pod %s/%s is of another node", k.Namespace, k.Pod.Name)
			}
			return nil
		}
		if err := t.lives("pods", k.Namespace, k.Pod, now, here); err != nil {
			return nil, err
		}
		info.PodName, info.PodUID = k.Pod.Name, k.Pod.UID
	}
	if k.Node != nil {
		if k.Node.Name != t.cfg.Node {
			return nil, nobody("it is bound to node %s", k.Node.Name)
		}
		if k.Pod == nil {
			if err := t.lives("nodes", "", k.Node, now, nil); err != nil {
				return nil, err
			}
		}
		info.NodeName, info.NodeUID = k.Node.Name, k.Node.UID
	}
	return info, nil
}

// bindable is what is read of an object that a token is bound to.
type bindable struct {
	Metadata struct {
		UID               string     `json:"uid"`
		DeletionTimestamp *time.Time `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec struct {
		NodeName           string `json:"nodeName"`
		ServiceAccountName string `json:"serviceAccountName"`
	} `json:"spec"`
}

// lives wants an object in the store, with the UID of the reference, and not deleted.
func (t *Tokens) lives(resource, namespace string, r *reference, now time.Time, also func(*bindable) error) error {
	key := wire.Key{Resource: resource, Namespace: namespace, Name: r.Name}
	entry, err := t.objects.Get(key)
	if err != nil {
		return nobody("its %s is not on this gateway", key.Human())
	}
	var o bindable
	if err := json.Unmarshal(entry.Object, &o); err != nil {
		return nobody("its %s: %w", key.Human(), err)
	}
	switch at := o.Metadata.DeletionTimestamp; {
	case r.UID == "" || o.Metadata.UID != r.UID:
		return nobody("its %s had another UID", key.Human())
	case at != nil && at.Before(now.Add(-deletedLeeway)):
		return nobody("its %s is deleted", key.Human())
	case also != nil:
		return also(&o)
	}
	return nil
}
