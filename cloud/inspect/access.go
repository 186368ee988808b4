package inspect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Rules returns the RBAC rules that cloudcore needs for this package: to review tokens and access rights.
func Rules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}},
		{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}},
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch"}},
	}
}

// AccessReviewer asks Kubernetes for the identity of a user and for their rights.
type AccessReviewer struct{ Kube kubernetes.Interface }

// errUnauthenticated is returned for a request without valid credentials.
var errUnauthenticated = errors.New("authentication required: use a client certificate or a token of this Kubernetes cluster")

// errForbidden is returned if the user lacks a right.
var errForbidden = errors.New("forbidden")

// IdentifyUser returns the sender of a request. The certificate, if there is one, was verified by the TLS handshake.
func (a AccessReviewer) IdentifyUser(ctx context.Context, r *http.Request) (authenticationv1.UserInfo, error) {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		subject := r.TLS.VerifiedChains[0][0].Subject
		if subject.CommonName == "" {
			return authenticationv1.UserInfo{}, errUnauthenticated
		}
		return authenticationv1.UserInfo{
			Username: subject.CommonName, Groups: append(append([]string{}, subject.Organization...), "system:authenticated"),
		}, nil
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || token == "" {
		return authenticationv1.UserInfo{}, errUnauthenticated
	}
	review, err := a.Kube.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return authenticationv1.UserInfo{}, fmt.Errorf("ask Kubernetes about the token: %w", err)
	case !review.Status.Authenticated:
		return authenticationv1.UserInfo{}, errUnauthenticated
	}
	return review.Status.User, nil
}

// AuthorizeUser returns nil if the user has a right.
func (a AccessReviewer) AuthorizeUser(ctx context.Context, user authenticationv1.UserInfo, on authorizationv1.ResourceAttributes) error {
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for name, values := range user.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}
	review, err := a.Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra, ResourceAttributes: &on},
	}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("ask Kubernetes about the rights of %s: %w", user.Username, err)
	case review.Status.Allowed:
		return nil
	}
	resource := on.Resource
	if on.Subresource != "" {
		resource += "/" + on.Subresource
	}
	name := on.Name
	if on.Namespace != "" {
		name = on.Namespace + "/" + name
	}
	return fmt.Errorf("%w: user %q may not %s %s", errForbidden, user.Username, on.Verb, strings.TrimSpace(resource+" "+name))
}

// StatusCode returns the HTTP status of an error of a request.
func (AccessReviewer) StatusCode(err error) int { return statusCode(err) }
