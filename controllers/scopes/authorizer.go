package scopes

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
)

const (
	// maxCached bounds the cached answers: users and scopes are few and the same at many nodes.
	maxCached = 8192
	// evaluateTimeout bounds the reviews for one node, and therefore how long a node with many requests occupies a
	// worker. Rights that were not evaluated within it are evaluated later, with the help of the answers cached by then.
	evaluateTimeout = 5 * time.Second
)

// scopeAuthorizer asks Kubernetes for access reviews. Its answers are cached for a time, so a DaemonSet costs as much as one pod.
type scopeAuthorizer struct {
	kube    kubernetes.Interface
	catalog *resourceCatalog
	// runsServiceAccount reports whether a pod with a service account runs on a node.
	runsServiceAccount func(node, namespace, account string) bool
	// allowedUsers are users that every node may request scopes for.
	allowedUsers []string
	// protected are the namespaces on which no scope is granted.
	protected controllers.ProtectedNamespaces
	// perNode is how many scopes a node may have. Refused scopes do not count.
	perNode   int
	answerTTL time.Duration
	metrics   *metrics
	undecided *undecidedRights

	mu      sync.Mutex
	answers map[accessQuery]accessAnswer // guarded by mu
}

type accessQuery struct {
	user  string
	scope wire.Scope
}

type accessAnswer struct {
	reason  wire.ScopeReason
	message string
	until   time.Time
}

// forgetAnswers drops the cached answers: roles have changed.
func (j *scopeAuthorizer) forgetAnswers() {
	j.mu.Lock()
	defer j.mu.Unlock()
	clear(j.answers)
}

// scopeVerdict is the result of the evaluation of one scope.
type scopeVerdict struct {
	kind  wire.ScopeKind
	users []wire.ScopeVerdict
	// lapsed are users whose right could not be evaluated for so long that they lose what they had.
	lapsed []string
}

// anyGranted reports whether any user may have the scope.
func (v scopeVerdict) anyGranted() bool {
	return slices.ContainsFunc(v.users, func(u wire.ScopeVerdict) bool { return u.Reason == "" })
}

// refuseAll refuses the scope to all users who were granted it.
func (v scopeVerdict) refuseAll(reason wire.ScopeReason, message string) {
	for i := range v.users {
		if v.users[i].Reason == "" {
			v.users[i].Reason, v.users[i].Message = reason, message
		}
	}
}

// evaluateWants evaluates a node's wants. Those that it already holds come first, so that additional requests neither
// prevent their evaluation nor take their place. The verdicts come in the order of wants.
func (j *scopeAuthorizer) evaluateWants(ctx context.Context, node string, wants []wire.ScopeWant, before []grant) []scopeVerdict {
	ctx, cancel := context.WithTimeout(ctx, evaluateTimeout)
	defer cancel()
	j.undecided.retainOnly(node, before)
	verdicts := make([]scopeVerdict, len(wants))
	taken := 0
	for _, i := range j.evaluationOrder(node, wants, before) {
		var held []string
		if at := grantIndex(before, wants[i].Scope); at >= 0 {
			held = before[at].Users
		}
		if kind, ok := wire.ServiceScope(wants[i].Scope); ok && !j.protected.Contains(kind.Namespace) {
			verdicts[i] = grantAll(kind, wants[i].Users)
			continue
		}
		verdicts[i] = j.evaluateScope(ctx, node, wants[i], held, taken < j.perNode)
		if verdicts[i].remainsGranted(held) {
			taken++
		}
	}
	return verdicts
}

// grantAll grants a scope on Services or EndpointSlices, which every node may have: they are no secret to a node, as the addresses of
// any Service are reachable from it, and without them its programs lose their connections. The node itself decides by the roles of
// its programs which of them may read what it holds. Such a scope does not count among those that a node may have.
func grantAll(kind wire.ScopeKind, users []string) scopeVerdict {
	v := scopeVerdict{kind: kind}
	for _, user := range users {
		v.users = append(v.users, wire.ScopeVerdict{Scope: kind.Scope, User: user})
	}
	return v
}

// evaluationOrder returns the order in which wants are evaluated: first those held, and of these first those that have
// waited longest for an answer.
func (j *scopeAuthorizer) evaluationOrder(node string, wants []wire.ScopeWant, before []grant) []int {
	since := j.undecided.oldestByScope(node)
	rank := func(i int) (int, int64) {
		oldest, waits := since[wants[i].Scope]
		switch {
		case grantIndex(before, wants[i].Scope) < 0:
			return 2, 0
		case waits:
			return 0, oldest.UnixNano()
		}
		return 1, 0
	}
	order := make([]int, len(wants))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		rankA, sinceA := rank(a)
		rankB, sinceB := rank(b)
		return cmp.Or(cmp.Compare(rankA, rankB), cmp.Compare(sinceA, sinceB))
	})
	return order
}

// evaluateScope evaluates one scope for all users who want it, the users who hold it first. room: the node may have one more.
func (j *scopeAuthorizer) evaluateScope(ctx context.Context, node string, want wire.ScopeWant, held []string, room bool) scopeVerdict {
	v := scopeVerdict{kind: wire.ScopeKind{Scope: want.Scope}, users: make([]wire.ScopeVerdict, len(want.Users))}
	for _, holds := range []bool{true, false} {
		for i, user := range want.Users {
			if slices.Contains(held, user) != holds {
				continue
			}
			reason, message := wire.ScopeTooLarge, fmt.Sprintf("a node has at most %d scopes", j.perNode)
			if room {
				reason, message = j.evaluateUser(ctx, node, user, want.Scope)
			}
			v.users[i] = wire.ScopeVerdict{Scope: want.Scope, User: user, Reason: reason, Message: message}
			if holds && j.undecided.recordResult(node, accessQuery{user: user, scope: want.Scope}, reason == wire.ScopeUnjudged, time.Now()) {
				v.lapsed = append(v.lapsed, user)
			}
		}
	}
	// Only users who may read the resource learn what the API has.
	if v.anyGranted() {
		var reason wire.ScopeReason
		var message string
		if v.kind, reason, message = j.catalog.lookupKind(ctx, want.Scope); reason != "" {
			v.refuseAll(reason, message)
		}
	}
	return v
}

// remainsGranted reports whether the node has the scope after this verdict, if these users had it before.
func (v scopeVerdict) remainsGranted(held []string) bool {
	return slices.ContainsFunc(v.users, func(u wire.ScopeVerdict) bool { return v.keepsScope(u, held) })
}

// keepsScope reports whether a user has the scope: it is granted, or it was granted before and could not be evaluated
// for a limited time.
func (v scopeVerdict) keepsScope(u wire.ScopeVerdict, held []string) bool {
	had := slices.Contains(held, u.User) && !slices.Contains(v.lapsed, u.User)
	return u.Reason == "" || u.Reason == wire.ScopeUnjudged && had
}

// evaluateUser evaluates whether a node may request scopes for a user, and whether the user may have the scope.
func (j *scopeAuthorizer) evaluateUser(ctx context.Context, node, user string, scope wire.Scope) (wire.ScopeReason, string) {
	if j.protected.Contains(scope.Namespace) {
		return wire.ScopeForbidden, fmt.Sprintf("namespace %s is protected: none of its objects is given to a gateway", scope.Namespace)
	}
	groups, reason, message := j.groupsOf(node, user)
	if reason != "" {
		return reason, message
	}
	q := accessQuery{user: user, scope: scope}
	now := time.Now()
	j.mu.Lock()
	a, ok := j.answers[q]
	j.mu.Unlock()
	if ok && now.Before(a.until) {
		return a.reason, a.message
	}
	for _, verb := range []string{"list", "watch"} {
		if reason, message = j.reviewAccess(ctx, user, groups, verb, scope); reason != "" {
			break
		}
	}
	if reason != wire.ScopeUnjudged {
		j.mu.Lock()
		if len(j.answers) >= maxCached {
			clear(j.answers)
		}
		j.answers[q] = accessAnswer{reason: reason, message: message, until: now.Add(j.answerTTL)}
		j.mu.Unlock()
	}
	return reason, message
}

const (
	accountPrefix = "system:serviceaccount:"
	nodePrefix    = "system:node:"
)

// groupsOf returns the groups of a user name, and refuses users that the node may not request scopes for.
func (j *scopeAuthorizer) groupsOf(node, user string) (groups []string, reason wire.ScopeReason, message string) {
	if account, ok := strings.CutPrefix(user, accountPrefix); ok {
		namespace, name, ok := strings.Cut(account, ":")
		if !ok || namespace == "" || name == "" || strings.Contains(name, ":") || !j.runsServiceAccount(node, namespace, name) {
			return nil, wire.ScopeForeign, fmt.Sprintf("no pod of %.200q runs on node %s", user, node)
		}
		return []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}, "", ""
	}
	switch {
	case user == nodePrefix+node:
		return []string{"system:nodes", "system:authenticated"}, "", ""
	case slices.Contains(j.allowedUsers, user) && !strings.HasPrefix(user, nodePrefix):
		return []string{"system:authenticated"}, "", ""
	}
	return nil, wire.ScopeForeign, fmt.Sprintf("node %s may not ask for %.200q", node, user)
}

func (j *scopeAuthorizer) reviewAccess(ctx context.Context, user string, groups []string, verb string, scope wire.Scope) (wire.ScopeReason, string) {
	j.metrics.reviews.Inc()
	review, err := j.kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: user, Groups: groups, ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: scope.Group, Version: scope.Version, Resource: scope.Resource, Namespace: scope.Namespace,
		}},
	}, metav1.CreateOptions{})
	if err == nil || apierrors.IsForbidden(err) {
		j.undecided.recordAnswer(time.Now())
	}
	switch {
	case apierrors.IsForbidden(err):
		return wire.ScopeUnjudged, "cloudcore may not create subjectaccessreviews: grant it that right"
	case err != nil:
		return wire.ScopeUnjudged, "Kubernetes could not be asked: " + err.Error()
	case !review.Status.Allowed:
		return wire.ScopeForbidden, fmt.Sprintf("%s may not %s %s", user, verb, scope.String())
	}
	return "", ""
}
