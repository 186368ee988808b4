// Package kubeauth authorizes readers of nodes' metrics by asking kube-apiserver who they are and what they may get.
package kubeauth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/cloud/gateway"
)

const (
	// How long an answer of Kubernetes is cached, as with a kubelet's webhook except for the first: 2 min there.
	tokenTTL, allowTTL, denyTTL = time.Minute, 5 * time.Minute, 30 * time.Second
	reviewTimeout               = 10 * time.Second
)

// New returns a gateway.Authorizer that asks kube-apiserver, by TokenReview and SubjectAccessReview, and caches its answers.
func New(clients kubernetes.Interface) (gateway.Authorizer, error) {
	backoff := &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 4}
	users, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		Anonymous: &apiserver.AnonymousAuthConfig{}, CacheTTL: tokenTTL, WebhookRetryBackoff: backoff,
		TokenAccessReviewClient: clients.AuthenticationV1(), TokenAccessReviewTimeout: reviewTimeout,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("token reviews: %w", err)
	}
	rights, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: clients.AuthorizationV1(), AllowCacheTTL: allowTTL, DenyCacheTTL: denyTTL, WebhookRetryBackoff: backoff,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("access reviews: %w", err)
	}
	return func(r *http.Request, node, subresource string) (string, error) {
		ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
		defer cancel()
		known, ok, err := users.AuthenticateRequest(r.Clone(ctx))
		if err != nil || !ok {
			return "", errors.Join(gateway.ErrUnknownUser, err)
		}
		decision, reason, err := rights.Authorize(ctx, authorizer.AttributesRecord{
			User: known.User, Verb: "get", Resource: "nodes", Subresource: subresource, Name: node, APIVersion: "v1", ResourceRequest: true,
		})
		switch {
		case err != nil:
			return known.User.GetName(), fmt.Errorf("ask what %s may do: %w", known.User.GetName(), err)
		case decision != authorizer.DecisionAllow:
			return known.User.GetName(), fmt.Errorf("%w: %s may not get nodes/%s of %s %s", gateway.ErrForbidden, known.User.GetName(), subresource, node, reason)
		}
		return known.User.GetName(), nil
	}, nil
}
