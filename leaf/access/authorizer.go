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

// Authorizer authorizes requests by the roles and bindings in the store.
type Authorizer struct {
	node           string
	rolesDelivered func() bool
	rbac           *rbac.RBACAuthorizer
}

// NewAuthorizer returns an authorizer. known reports whether all of the cluster's roles and bindings that concern this
// gateway have been delivered: before that no request is refused definitely.
func NewAuthorizer(node string, objects Objects, known func() bool) *Authorizer {
	r := &Authorizer{node: node, rolesDelivered: known}
	r.rbac = rbac.New(
		&rbacCache[rbacv1.Role]{objects: objects, resource: "roles"},
		&rbacCache[rbacv1.RoleBinding]{objects: objects, resource: "rolebindings"},
		&rbacCache[rbacv1.ClusterRole]{objects: objects, resource: "clusterroles"},
		&rbacCache[rbacv1.ClusterRoleBinding]{objects: objects, resource: "clusterrolebindings"},
	)
	return r
}

// IsNode reports whether a user is this gateway's own kubelet.
func (r *Authorizer) IsNode(u user.Info) bool {
	return u.GetName() == "system:node:"+r.node && slices.Contains(u.GetGroups(), user.NodesGroup)
}

// IsMaster reports whether a user may do everything in every cluster.
func IsMaster(u user.Info) bool { return slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) }

// Authorize reports whether a user may perform a request, and if not, why. The error is ErrUnknown if that is not known yet.
func (r *Authorizer) Authorize(ctx context.Context, a authorizer.Attributes) (allowed bool, reason string, err error) {
	if IsMaster(a.GetUser()) || r.IsNode(a.GetUser()) {
		return true, "", nil
	}
	decision, reason, err := r.rbac.Authorize(ctx, a)
	switch {
	case decision == authorizer.DecisionAllow:
		return true, reason, nil
	case err != nil:
		return false, reason, fmt.Errorf("evaluate roles: %w", err)
	case !r.rolesDelivered():
		return false, reason, ErrUnknown
	}
	return false, reason, nil
}

// RulesFor lists a user's rights in a namespace, for a SelfSubjectRulesReview.
func (r *Authorizer) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return r.rbac.RulesFor(ctx, u, namespace)
}

// rbacCache is a cache of one kind of the group rbac.authorization.k8s.io. Each object is decoded once for each of its revisions.
type rbacCache[T any] struct {
	objects  Objects
	resource string

	mu      sync.Mutex // guards all below
	entries map[wire.Key]cachedObject[T]
}

type cachedObject[T any] struct {
	revision uint64
	object   *T
}

func (d *rbacCache[T]) getObject(namespace, name string) (*T, error) {
	key := wire.Key{Group: rbacv1.GroupName, Resource: d.resource, Namespace: namespace, Name: name}
	entry, err := d.objects.Get(key)
	if err != nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: key.Group, Resource: key.Resource}, name)
	}
	return d.decodeEntry(entry)
}

func (d *rbacCache[T]) listObjects(namespace string) ([]*T, error) {
	entries, _ := d.objects.List(rbacv1.GroupName, d.resource, namespace)
	list := make([]*T, 0, len(entries))
	for _, e := range entries {
		o, err := d.decodeEntry(e)
		if err != nil {
			return nil, err
		}
		list = append(list, o)
	}
	return list, nil
}

// maxCachedObjects limits the decoded objects in the cache; twice what a large cluster has of one kind.
const maxCachedObjects = 4096

func (d *rbacCache[T]) decodeEntry(e store.Entry) (*T, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s, ok := d.entries[e.Key]; ok && s.revision == e.Revision {
		return s.object, nil
	}
	o := new(T)
	if err := json.Unmarshal(e.Object, o); err != nil {
		return nil, fmt.Errorf("decode %s: %w", e.Key.Human(), err)
	}
	if d.entries == nil || len(d.entries) >= maxCachedObjects { // also drops objects that are no longer stored
		d.entries = map[wire.Key]cachedObject[T]{}
	}
	d.entries[e.Key] = cachedObject[T]{e.Revision, o}
	return o, nil
}

// The four methods that upstream's evaluator calls; each T has its own.

func (d *rbacCache[T]) GetRole(_ context.Context, namespace, name string) (*T, error) {
	return d.getObject(namespace, name)
}

func (d *rbacCache[T]) ListRoleBindings(_ context.Context, namespace string) ([]*T, error) {
	if namespace == "" {
		return nil, nil
	}
	return d.listObjects(namespace)
}

func (d *rbacCache[T]) GetClusterRole(_ context.Context, name string) (*T, error) {
	return d.getObject("", name)
}

func (d *rbacCache[T]) ListClusterRoleBindings(context.Context) ([]*T, error) {
	return d.listObjects("")
}
