// Package auth authenticates and authorizes the callers of the local API, on the gateway alone, and answers reviews of both.
package auth

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/frond-edge/frond/leaf/access"
	"github.com/frond-edge/frond/leaf/localapi/caller"
	"github.com/frond-edge/frond/leaf/localapi/respond"
)

// Gate decides who a caller is and what it may do. Its methods may be called concurrently.
type Gate struct {
	node       string
	tokens     *access.TokenAuthenticator
	authorizer *access.Authorizer
	log        *zap.Logger
}

// NewGate creates the Gate of a node.
func NewGate(node string, tokens *access.TokenAuthenticator, authorizer *access.Authorizer, log *zap.Logger) *Gate {
	return &Gate{node: node, tokens: tokens, authorizer: authorizer, log: log}
}

// Authenticate determines the caller of a request. The error is a status for the client.
func (g *Gate) Authenticate(req *http.Request) (caller.Caller, error) {
	way := caller.ListenerOf(req.Context())
	switch way {
	case caller.Kubelet, caller.Socket:
		node := &user.DefaultInfo{Name: "system:node:" + g.node, Groups: []string{user.NodesGroup, user.AllAuthenticated}}
		return caller.Caller{User: node, Kind: way, Trusted: true}, nil
	default:
	}
	if req.TLS != nil && len(req.TLS.VerifiedChains) > 0 {
		subject := req.TLS.VerifiedChains[0][0].Subject
		u := &user.DefaultInfo{Name: subject.CommonName, Groups: append(slices.Clone(subject.Organization), user.AllAuthenticated)}
		return caller.Caller{User: u, Kind: caller.Certificate, Trusted: g.authorizer.IsNode(u) || access.IsMaster(u)}, nil
	}
	token, ok := bearerToken(req)
	if !ok {
		return caller.Caller{Kind: caller.Anonymous}, apierrors.NewUnauthorized("Unauthorized")
	}
	u, err := g.tokens.Authenticate(req.Context(), token)
	if err != nil {
		return caller.Caller{Kind: caller.Anonymous}, g.authenticationError(err)
	}
	all := &user.DefaultInfo{
		Name: u.GetName(), UID: u.GetUID(), Extra: u.GetExtra(), Groups: append(slices.Clone(u.GetGroups()), user.AllAuthenticated),
	}
	return caller.Caller{User: all, Kind: caller.Account, Token: token}, nil
}

func bearerToken(req *http.Request) (string, bool) {
	kind, token, ok := strings.Cut(strings.TrimSpace(req.Header.Get("Authorization")), " ")
	token = strings.TrimSpace(token)
	return token, ok && strings.EqualFold(kind, "bearer") && token != ""
}

// authenticationError refuses as kube-apiserver does, without reasons, except for a token that has expired: its bearer
// cannot know the rules of a gateway without a link.
func (g *Gate) authenticationError(err error) error {
	g.log.Debug("request without identity", zap.Error(err))
	if expired, ok := errors.AsType[*access.ExpiredError](err); ok {
		return apierrors.NewUnauthorized(expired.Error())
	}
	if errors.Is(err, access.ErrUnknown) {
		return respond.RetryLater(access.ErrUnknown.Error())
	}
	return apierrors.NewUnauthorized("Unauthorized")
}

// Authorize reports whether the caller may make the request. If not, it has sent the answer.
func (g *Gate) Authorize(w http.ResponseWriter, req *http.Request, c caller.Caller) bool {
	if c.Trusted && c.Kind != caller.Certificate {
		return true
	}
	for header := range req.Header {
		if strings.HasPrefix(header, "Impersonate-") {
			respond.Error(w, req, apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("a gateway's local API does not impersonate")))
			return false
		}
	}
	if c.Trusted {
		return true
	}
	attributes, err := filters.GetAuthorizerAttributes(req.Context())
	if err != nil {
		respond.Error(w, req, apierrors.NewInternalError(err))
		return false
	}
	allowed, reason, err := g.authorizer.Authorize(req.Context(), attributes)
	switch {
	case errors.Is(err, access.ErrUnknown):
		respond.Error(w, req, respond.RetryLater(fmt.Sprintf("user %q: %v", c.User.GetName(), err)))
	case err != nil:
		respond.Error(w, req, apierrors.NewInternalError(err))
	case !allowed:
		responsewriters.Forbidden(attributes, w, req, reason, scheme.Codecs)
	}
	return allowed && err == nil
}
