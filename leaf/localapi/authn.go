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

// identity is the kind of a client: all that metrics tell of it.
type identity string

const (
	nobody      identity = "none"
	kubelet     identity = "kubelet"     // in memory
	staff       identity = "socket"      // the unix socket: the agent's user, and a group if one is configured
	certificate identity = "certificate" // a program of this gateway with a client certificate
	account     identity = "account"     // a service account's token
)

// caller is who makes a request.
type caller struct {
	user user.Info
	kind identity
	// token proves to Kubernetes who it is; "" for those who have none.
	token string
	// trusted callers are the node itself, or may do more than it: they see the API as the kubelet does, all of it, and what
	// they write is written as the node.
	trusted bool
}

type callerKey struct{}

// callerOf returns who makes the request that ctx belongs to; outside of requests that is the node.
func callerOf(ctx context.Context) caller {
	if c, ok := ctx.Value(callerKey{}).(caller); ok {
		return c
	}
	return caller{kind: kubelet, trusted: true}
}

func asCaller(ctx context.Context, c caller) context.Context {
	return context.WithValue(request.WithUser(ctx, c.user), callerKey{}, c)
}

type wayKey struct{}

// through marks the requests of one listener.
func through(ctx context.Context, way identity) context.Context {
	return context.WithValue(ctx, wayKey{}, way)
}

// identify finds out who makes a request. The error is a status for the client.
func (s *Server) identify(req *http.Request) (caller, error) {
	way, _ := req.Context().Value(wayKey{}).(identity)
	switch way {
	case kubelet, staff:
		node := &user.DefaultInfo{Name: "system:node:" + s.cfg.Node, Groups: []string{user.NodesGroup, user.AllAuthenticated}}
		return caller{user: node, kind: way, trusted: true}, nil
	default:
	}
	if req.TLS != nil && len(req.TLS.VerifiedChains) > 0 {
		subject := req.TLS.VerifiedChains[0][0].Subject
		u := &user.DefaultInfo{Name: subject.CommonName, Groups: append(slices.Clone(subject.Organization), user.AllAuthenticated)}
		return caller{user: u, kind: certificate, trusted: s.rules.IsNode(u) || access.IsMaster(u)}, nil
	}
	token, ok := bearer(req)
	if !ok {
		return caller{kind: nobody}, apierrors.NewUnauthorized("Unauthorized")
	}
	u, err := s.accounts.Check(req.Context(), token)
	if err != nil {
		return caller{kind: nobody}, s.notIdentified(err)
	}
	all := &user.DefaultInfo{
		Name: u.GetName(), UID: u.GetUID(), Extra: u.GetExtra(), Groups: append(slices.Clone(u.GetGroups()), user.AllAuthenticated),
	}
	return caller{user: all, kind: account, token: token}, nil
}

func bearer(req *http.Request) (string, bool) {
	kind, token, ok := strings.Cut(strings.TrimSpace(req.Header.Get("Authorization")), " ")
	token = strings.TrimSpace(token)
	return token, ok && strings.EqualFold(kind, "bearer") && token != ""
}

// notIdentified says no as kube-apiserver does, without reasons, but for a token that was good once: its bearer cannot
// know how a gateway without link judges.
func (s *Server) notIdentified(err error) error {
	s.log.Debug("request without identity", zap.Error(err))
	if expired, ok := errors.AsType[*access.ExpiredError](err); ok {
		return apierrors.NewUnauthorized(expired.Error())
	}
	if errors.Is(err, access.ErrUnknown) {
		return later(access.ErrUnknown.Error())
	}
	return apierrors.NewUnauthorized("Unauthorized")
}

// laterSeconds is what clients are told to wait; client-go tries ten times before it tells its caller.
const laterSeconds = 1

// later is a 503 that clients try again.
func later(message string) *apierrors.StatusError {
	err := apierrors.NewServiceUnavailable(message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: laterSeconds}
	return err
}

// judge decides whether the caller may do what it asks; it has answered if not.
func (s *Server) judge(w http.ResponseWriter, req *http.Request, c caller) bool {
	if c.trusted && c.kind != certificate {
		return true
	}
	for header := range req.Header {
		if strings.HasPrefix(header, "Impersonate-") {
			fail(w, req, apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("a gateway's local API does not impersonate")))
			return false
		}
	}
	if c.trusted {
		return true
	}
	attributes, err := filters.GetAuthorizerAttributes(req.Context())
	if err != nil {
		fail(w, req, apierrors.NewInternalError(err))
		return false
	}
	allowed, reason, err := s.rules.Authorize(req.Context(), attributes)
	switch {
	case errors.Is(err, access.ErrUnknown):
		fail(w, req, later(fmt.Sprintf("user %q: %v", c.user.GetName(), err)))
	case err != nil:
		fail(w, req, apierrors.NewInternalError(err))
	case !allowed:
		responsewriters.Forbidden(attributes, w, req, reason, scheme.Codecs)
	}
	return allowed && err == nil
}
