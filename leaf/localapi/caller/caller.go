// Package caller says who made a request to the local API.
package caller

import (
	"context"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// QuotaKey returns the key under which a caller's use is counted: its pod, or its user if that has none; "" for the node itself.
func (c Caller) QuotaKey() string {
	if c.User == nil {
		return ""
	}
	if pod := c.User.GetExtra()[serviceaccount.PodUIDKey]; len(pod) == 1 {
		return pod[0]
	}
	return c.User.GetName()
}

// AsNode makes the node the caller.
func AsNode(ctx context.Context) context.Context {
	return context.WithValue(ctx, callerKey{}, Caller{Kind: Kubelet, Trusted: true})
}

// ListenerOf returns the kind of the listener that a request came to; anonymousCaller for one with TLS.
func ListenerOf(ctx context.Context) Kind {
	kind, _ := ctx.Value(listenerKey{}).(Kind)
	return kind
}

// WithListener marks the requests of one listener.
func WithListener(ctx context.Context, way Kind) context.Context {
	return context.WithValue(ctx, listenerKey{}, way)
}

type listenerKey struct{}

// With makes c the caller of a request.
func With(ctx context.Context, c Caller) context.Context {
	return context.WithValue(request.WithUser(ctx, c.User), callerKey{}, c)
}

// Of returns the caller of the request that ctx belongs to. Outside of requests that is the node.
func Of(ctx context.Context) Caller {
	if c, ok := ctx.Value(callerKey{}).(Caller); ok {
		return c
	}
	return Caller{Kind: Kubelet, Trusted: true}
}

type callerKey struct{}

// Caller is the authenticated client of a request.
type Caller struct {
	User user.Info
	Kind Kind
	// Token authenticates the caller to Kubernetes; "" for callers without a token.
	Token string
	// Trusted callers are the node itself, or have more rights than it: they see the whole API as the kubelet does, and
	// their writes are made as the node.
	Trusted bool
}

// Kind is the kind of a client: the only thing about it that metrics contain.
type Kind string

// The kinds.
const (
	Anonymous   Kind = "none"
	Kubelet     Kind = "kubelet"     // in memory
	Socket      Kind = "socket"      // the unix socket: the agent's user, and a group if one is configured
	Certificate Kind = "certificate" // a program on this gateway with a client certificate
	Account     Kind = "account"     // a service account's token
)
