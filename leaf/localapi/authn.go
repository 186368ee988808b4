package localapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/frond-edge/frond/leaf/access"
)

// callerKind is the kind of a client: the only thing about it that metrics contain.
type callerKind string

const (
	anonymousCaller   callerKind = "none"
	kubeletCaller     callerKind = "kubelet"     // in memory
	socketCaller      callerKind = "socket"      // the unix socket: the agent's user, and a group if one is configured
	certificateCaller callerKind = "certificate" // a program on this gateway with a client certificate
	accountCaller     callerKind = "account"     // a service account's token
)

// caller is the authenticated client of a request.
type caller struct {
	user user.Info
	kind callerKind
	// token authenticates the caller to Kubernetes; "" for callers without a token.
	token string
	// trusted callers are the node itself, or have more rights than it: they see the whole API as the kubelet does, and
	// their writes are made as the node.
	trusted bool
}

type callerKey struct{}

// callerOf returns the caller of the request that ctx belongs to. Outside of requests that is the node.
func callerOf(ctx context.Context) caller {
	if c, ok := ctx.Value(callerKey{}).(caller); ok {
		return c
	}
	return caller{kind: kubeletCaller, trusted: true}
}

func withCaller(ctx context.Context, c caller) context.Context {
	return context.WithValue(request.WithUser(ctx, c.user), callerKey{}, c)
}

type listenerKey struct{}

// withListenerKind marks the requests of one listener.
func withListenerKind(ctx context.Context, way callerKind) context.Context {
	return context.WithValue(ctx, listenerKey{}, way)
}

// listenerKindOf returns the kind of the listener that a request came to; anonymousCaller for one with TLS.
func listenerKindOf(ctx context.Context) callerKind {
	kind, _ := ctx.Value(listenerKey{}).(callerKind)
	return kind
}

// asNode makes the node the caller.
func asNode(ctx context.Context) context.Context {
	return context.WithValue(ctx, callerKey{}, caller{kind: kubeletCaller, trusted: true})
}

// authenticate determines the caller of a request. The error is a status for the client.
func (s *Server) authenticate(req *http.Request) (caller, error) {
	way := listenerKindOf(req.Context())
	switch way {
	case kubeletCaller, socketCaller:
		node := &user.DefaultInfo{Name: "system:node:" + s.cfg.Node, Groups: []string{user.NodesGroup, user.AllAuthenticated}}
		return caller{user: node, kind: way, trusted: true}, nil
	default:
	}
	if req.TLS != nil && len(req.TLS.VerifiedChains) > 0 {
		subject := req.TLS.VerifiedChains[0][0].Subject
		u := &user.DefaultInfo{Name: subject.CommonName, Groups: append(slices.Clone(subject.Organization), user.AllAuthenticated)}
		return caller{user: u, kind: certificateCaller, trusted: s.authorizer.IsNode(u) || access.IsMaster(u)}, nil
	}
	token, ok := bearerToken(req)
	if !ok {
		return caller{kind: anonymousCaller}, apierrors.NewUnauthorized("Unauthorized")
	}
	u, err := s.tokenAuth.Authenticate(req.Context(), token)
	if err != nil {
		return caller{kind: anonymousCaller}, s.authenticationError(err)
	}
	all := &user.DefaultInfo{
		Name: u.GetName(), UID: u.GetUID(), Extra: u.GetExtra(), Groups: append(slices.Clone(u.GetGroups()), user.AllAuthenticated),
	}
	return caller{user: all, kind: accountCaller, token: token}, nil
}

func bearerToken(req *http.Request) (string, bool) {
	kind, token, ok := strings.Cut(strings.TrimSpace(req.Header.Get("Authorization")), " ")
	token = strings.TrimSpace(token)
	return token, ok && strings.EqualFold(kind, "bearer") && token != ""
}

// authenticationError refuses as kube-apiserver does, without reasons, except for a token that has expired: its bearer
// cannot know the rules of a gateway without a link.
func (s *Server) authenticationError(err error) error {
	s.log.Debug("request without identity", zap.Error(err))
	if expired, ok := errors.AsType[*access.ExpiredError](err); ok {
		return apierrors.NewUnauthorized(expired.Error())
	}
	if errors.Is(err, access.ErrUnknown) {
		return newRetryLater(access.ErrUnknown.Error())
	}
	return apierrors.NewUnauthorized("Unauthorized")
}

// retryAfterSeconds is the Retry-After sent to clients; client-go tries ten times before it returns the error to its caller.
const retryAfterSeconds = 1

// newRetryLater returns a 503 that clients retry.
func newRetryLater(message string) *apierrors.StatusError {
	err := apierrors.NewServiceUnavailable(message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfterSeconds}
	return err
}

// authorizeRequest reports whether the caller may make the request. If not, it has sent the answer.
func (s *Server) authorizeRequest(w http.ResponseWriter, req *http.Request, c caller) bool {
	if c.trusted && c.kind != certificateCaller {
		return true
	}
	for header := range req.Header {
		if strings.HasPrefix(header, "Impersonate-") {
			writeError(w, req, apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("a gateway's local API does not impersonate")))
			return false
		}
	}
	if c.trusted {
		return true
	}
	attributes, err := filters.GetAuthorizerAttributes(req.Context())
	if err != nil {
		writeError(w, req, apierrors.NewInternalError(err))
		return false
	}
	allowed, reason, err := s.authorizer.Authorize(req.Context(), attributes)
	switch {
	case errors.Is(err, access.ErrUnknown):
		writeError(w, req, newRetryLater(fmt.Sprintf("user %q: %v", c.user.GetName(), err)))
	case err != nil:
		writeError(w, req, apierrors.NewInternalError(err))
	case !allowed:
		responsewriters.Forbidden(attributes, w, req, reason, scheme.Codecs)
	}
	return allowed && err == nil
}
