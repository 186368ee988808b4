package access

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// Rules judges by the roles and bindings in the store.
type Rules struct {
	node  string
	known func() bool
	rbac  *rbac.RBACAuthorizer
}

// NewRules makes a judge. known tells whether all of the cluster's roles and bindings that concern this gateway have been
// delivered: before that nothing is refused for good.
func NewRules(node string, objects Objects, known func() bool) *Rules {
	r := &Rules{node: node, known: known}
	r.rbac = rbac.New(
		&decoded[rbacv1.Role]{objects: objects, resource: "roles"},
		&decoded[rbacv1.RoleBinding]{objects: objects, resource: "rolebindings"},
		&decoded[rbacv1.ClusterRole]{objects: objects, resource: "clusterroles"},
		&decoded[rbacv1.ClusterRoleBinding]{objects: objects, resource: "clusterrolebindings"},
	)
	return r
}

// IsNode says whether a user is this gateway's own kubelet.
func (r *Rules) IsNode(u user.Info) bool {
	return u.GetName() == "system:node:"+r.node && slices.Contains(u.GetGroups(), user.NodesGroup)
}

// IsMaster says whether a user may do everything in every cluster.
func IsMaster(u user.Info) bool { return slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) }

// Authorize says whether a user may do something, and if not, why. The error is ErrUnknown when that cannot be said yet.
func (r *Rules) Authorize(ctx context.Context, a authorizer.Attributes) (allowed bool, reason string, err error) {
	if IsMaster(a.GetUser()) || r.IsNode(a.GetUser()) {
		return true, "", nil
	}
	decision, reason, err := r.rbac.Authorize(ctx, a)
	switch {
	case decision == authorizer.DecisionAllow:
		return true, reason, nil
	case err != nil:
		return false, reason, fmt.Errorf("evaluate roles: %w", err)
	case !r.known():
		return false, reason, ErrUnknown
	}
	return false, reason, nil
}

// RulesFor lists what a user may do in a namespace, for a SelfSubjectRulesReview.
func (r *Rules) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return r.rbac.RulesFor(ctx, u, namespace)
}

// decoded reads objects of one kind of the group rbac.authorization.k8s.io, each decoded once for each of its revisions.
type decoded[T any] struct {
	objects  Objects
	resource string

	mu   sync.Mutex // guards all below
	seen map[wire.Key]revised[T]
}

type revised[T any] struct {
	revision uint64
	object   *T
}

func (d *decoded[T]) get(namespace, name string) (*T, error) {
	key := wire.Key{Group: rbacv1.GroupName, Resource: d.resource, Namespace: namespace, Name: name}
	entry, err := d.objects.Get(key)
	if err != nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: key.Group, Resource: key.Resource}, name)
	}
	return d.decode(entry)
}

func (d *decoded[T]) list(namespace string) ([]*T, error) {
	entries, _ := d.objects.List(rbacv1.GroupName, d.resource, namespace)
	list := make([]*T, 0, len(entries))
	for _, e := range entries {
		o, err := d.decode(e)
		if err != nil {
			return nil, err
		}
		list = append(list, o)
	}
	return list, nil
}

// maxSeen bounds the objects that are kept decoded; twice what a large cluster has of one kind.
const maxSeen = 4096

func (d *decoded[T]) decode(e store.Entry) (*T, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s, ok := d.seen[e.Key]; ok && s.revision == e.Revision {
		return s.object, nil
	}
	o := new(T)
	if err := json.Unmarshal(e.Object, o); err != nil {
		return nil, fmt.Errorf("decode %s: %w", e.Key.Human(), err)
	}
	if d.seen == nil || len(d.seen) >= maxSeen { // what is gone from the store goes with the rest
		d.seen = map[wire.Key]revised[T]{}
	}
	d.seen[e.Key] = revised[T]{e.Revision, o}
	return o, nil
}

// The four methods that upstream's evaluator calls; each T has its own.

func (d *decoded[T]) GetRole(_ context.Context, namespace, name string) (*T, error) {
	return d.get(namespace, name)
}

func (d *decoded[T]) ListRoleBindings(_ context.Context, namespace string) ([]*T, error) {
	if namespace == "" {
		return nil, nil
	}
	return d.list(namespace)
}

func (d *decoded[T]) GetClusterRole(_ context.Context, name string) (*T, error) {
	return d.get("", name)
}

func (d *decoded[T]) ListClusterRoleBindings(context.Context) ([]*T, error) { return d.list("") }
