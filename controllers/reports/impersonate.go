package reports

import (
	"context"
	"errors"
	"net/http"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// Impersonating returns a copy of a client configuration whose requests are made as the node that WithNode put into
// their context. A request without a node is refused before it is sent, so that the client's own rights are never used for it.
//
// Only the user name is sent: the apiserver itself then adds the group system:nodes, and cloudcore needs the right to
// impersonate nodes only ("constrained impersonation", on by default since Kubernetes 1.36). Classic impersonation also
// sends the group, and needs the right to impersonate every user.
func Impersonating(config *rest.Config, classic bool) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &impersonatingTransport{next: next, classic: classic}
	})
	return config
}

// WithNode returns a context for requests as the node.
func WithNode(ctx context.Context, node string) context.Context {
	return context.WithValue(ctx, nodeKey{}, node)
}

type nodeKey struct{}

// impersonatingTransport is one round tripper for all nodes: a client per node would cost memory and connections.
type impersonatingTransport struct {
	next    http.RoundTripper
	classic bool
}

var errNoNode = errors.New("request without a node")

func (a *impersonatingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	node, _ := r.Context().Value(nodeKey{}).(string)
	if node == "" {
		return nil, errNoNode
	}
	r = r.Clone(r.Context())
	r.Header.Set(transport.ImpersonateUserHeader, "system:node:"+node)
	if a.classic {
		r.Header.Set(transport.ImpersonateGroupHeader, "system:nodes")
	}
	return a.next.RoundTrip(r) //nolint:wrapcheck // a round tripper hands errors on as they are
}

// WrappedRoundTripper lets client-go find the connection pool.
func (a *impersonatingTransport) WrappedRoundTripper() http.RoundTripper { return a.next }

// Rules returns the RBAC rules that cloudcore needs for this package.
func Rules() []rbacv1.PolicyRule {
	on := func(verb string) string { return "impersonate-on:arbitrary-node:" + verb }
	rule := func(group string, resources []string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
	}
	return []rbacv1.PolicyRule{
		rule("", []string{"pods", "nodes"}, "get", "list", "watch"),
		rule("", []string{"nodes"}, "create"),
		rule("", []string{"events"}, "get"),
		rule("authentication.k8s.io", []string{"nodes"}, "impersonate:arbitrary-node"),
		rule("", []string{"pods"}, on("create"), on("delete")),
		rule("", []string{"pods/status", "nodes/status"}, on("patch")),
		rule("", []string{"nodes"}, on("create")),
		rule("storage.k8s.io", []string{"csinodes"}, on("get"), on("create"), on("update")),
		rule("", []string{"events"}, on("create"), on("patch")),
	}
}

// CallRules returns the RBAC rules to forward any request as a node. They are bounded by what the node itself may do:
// the Node authorizer and NodeRestriction check each request as the node's own.
func CallRules() []rbacv1.PolicyRule {
	var verbs []string
	for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"} {
		verbs = append(verbs, "impersonate-on:arbitrary-node:"+verb)
	}
	return []rbacv1.PolicyRule{
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"nodes"}, Verbs: []string{"impersonate:arbitrary-node"}},
		{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: verbs},
		{NonResourceURLs: []string{"*"}, Verbs: verbs},
	}
}
