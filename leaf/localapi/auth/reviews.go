package auth

import (
	"context"
	"errors"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/frond-edge/frond/leaf/access"
	"github.com/frond-edge/frond/leaf/localapi/caller"
	"github.com/frond-edge/frond/leaf/localapi/respond"
)

// IsReview reports whether a request is a review: of a token, or of a user's rights.
func IsReview(info *request.RequestInfo) bool {
	if info.APIVersion != "v1" || info.Subresource != "" {
		return false
	}
	switch info.APIGroup + "/" + info.Resource {
	case "authorization.k8s.io/selfsubjectaccessreviews", "authorization.k8s.io/subjectaccessreviews",
		"authorization.k8s.io/localsubjectaccessreviews", "authorization.k8s.io/selfsubjectrulesreviews",
		"authentication.k8s.io/selfsubjectreviews", "authentication.k8s.io/tokenreviews":
		return true
	}
	return false
}

// reviewToken identifies the user of a token. A faulty token is reported in the answer.
func (g *Gate) reviewToken(ctx context.Context, asked authenticationv1.TokenReviewSpec) authenticationv1.TokenReviewStatus {
	u, audiences, err := g.tokens.AuthenticateFor(ctx, asked.Token, asked.Audiences)
	if err != nil {
		return authenticationv1.TokenReviewStatus{Error: err.Error()}
	}
	return authenticationv1.TokenReviewStatus{Authenticated: true, User: userInfo(u), Audiences: audiences}
}

// FillReview fills in the status of a review.
func (g *Gate) FillReview(ctx context.Context, obj runtime.Object) error {
	who := caller.Of(ctx).User
	switch r := obj.(type) {
	case *authenticationv1.SelfSubjectReview:
		r.Status.UserInfo = userInfo(who)
	case *authenticationv1.TokenReview:
		r.Status = g.reviewToken(ctx, r.Spec)
	case *authorizationv1.SelfSubjectAccessReview:
		return g.reviewAccess(ctx, who, r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes, &r.Status)
	case *authorizationv1.SubjectAccessReview:
		return g.reviewAccess(ctx, subjectUser(&r.Spec), r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes, &r.Status)
	case *authorizationv1.LocalSubjectAccessReview:
		if a := r.Spec.ResourceAttributes; a == nil || a.Namespace != r.Namespace {
			return apierrors.NewBadRequest("spec.resourceAttributes.namespace must match metadata.namespace")
		}
		return g.reviewAccess(ctx, subjectUser(&r.Spec), r.Spec.ResourceAttributes, nil, &r.Status)
	case *authorizationv1.SelfSubjectRulesReview:
		return g.reviewRules(ctx, who, r)
	default:
		return apierrors.NewBadRequest("the body is no review")
	}
	return nil
}

func userInfo(u user.Info) authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	for key, values := range u.GetExtra() {
		if info.Extra == nil {
			info.Extra = map[string]authenticationv1.ExtraValue{}
		}
		info.Extra[key] = values
	}
	return info
}

func subjectUser(spec *authorizationv1.SubjectAccessReviewSpec) user.Info {
	u := &user.DefaultInfo{Name: spec.User, UID: spec.UID, Groups: spec.Groups, Extra: map[string][]string{}}
	for key, values := range spec.Extra {
		u.Extra[key] = values
	}
	return u
}

// reviewAccess authorizes as for a request.
func (g *Gate) reviewAccess(ctx context.Context, u user.Info, r *authorizationv1.ResourceAttributes, n *authorizationv1.NonResourceAttributes,
	status *authorizationv1.SubjectAccessReviewStatus,
) error {
	a := authorizer.AttributesRecord{User: u}
	switch {
	case (r == nil) == (n == nil):
		return apierrors.NewInvalid(schema.GroupKind{Group: authorizationv1.GroupName, Kind: "SubjectAccessReview"}, "", nil)
	case r != nil:
		a.ResourceRequest, a.Verb, a.Namespace, a.Name = true, r.Verb, r.Namespace, r.Name
		a.APIGroup, a.APIVersion, a.Resource, a.Subresource = r.Group, r.Version, r.Resource, r.Subresource
	default:
		a.Verb, a.Path = n.Verb, n.Path
	}
	allowed, reason, err := g.authorizer.Authorize(ctx, a)
	if errors.Is(err, access.ErrUnknown) {
		return respond.RetryLater(err.Error())
	}
	*status = authorizationv1.SubjectAccessReviewStatus{Allowed: allowed, Reason: reason}
	if err != nil {
		status.EvaluationError = err.Error()
	}
	return nil
}

func (g *Gate) reviewRules(ctx context.Context, u user.Info, r *authorizationv1.SelfSubjectRulesReview) error {
	if r.Spec.Namespace == "" {
		return apierrors.NewBadRequest("no namespace on request")
	}
	resources, others, incomplete, err := g.authorizer.RulesFor(ctx, u, r.Spec.Namespace)
	r.Status = authorizationv1.SubjectRulesReviewStatus{
		Incomplete: incomplete, ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{},
	}
	if err != nil {
		r.Status.EvaluationError = err.Error()
	}
	for _, rule := range resources {
		r.Status.ResourceRules = append(r.Status.ResourceRules, authorizationv1.ResourceRule{
			Verbs: rule.GetVerbs(), APIGroups: rule.GetAPIGroups(), Resources: rule.GetResources(), ResourceNames: rule.GetResourceNames(),
		})
	}
	for _, rule := range others {
		r.Status.NonResourceRules = append(r.Status.NonResourceRules, authorizationv1.NonResourceRule{
			Verbs: rule.GetVerbs(), NonResourceURLs: rule.GetNonResourceURLs(),
		})
	}
	return nil
}
