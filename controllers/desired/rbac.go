package desired

import (
	"slices"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/references"
)

// A node authorizes the requests of its pods, also without a link. Each service account there therefore needs the
// bindings that name it or its groups, and these need their roles. Between an account and its bindings the graph has
// vertices that are never published: the subjects of bindings. An event of a binding refreshes only these.

// subjectsResource is the resource of a subject's vertex.
const subjectsResource = "subjects"

// subjectIndex is the name of the cache's index of bindings by their subjects.
const subjectIndex = "frond.io/subject"

func subjectKey(subject string) wire.Key {
	return wire.Key{Group: "frond.io", Resource: subjectsResource, Name: subject}
}

func isSubject(key wire.Key) bool { return key.Group == "frond.io" && key.Resource == subjectsResource }

func userSubject(name string) string  { return "user " + name }
func groupSubject(name string) string { return "group " + name }

func accountUser(namespace, name string) string {
	return "system:serviceaccount:" + namespace + ":" + name
}

// accountSubjects returns all subjects by which a binding can name a service account.
func accountSubjects(namespace, name string) []wire.Key {
	return []wire.Key{
		subjectKey(userSubject(accountUser(namespace, name))),
		subjectKey(groupSubject("system:serviceaccounts")),
		subjectKey(groupSubject("system:serviceaccounts:" + namespace)),
		subjectKey(groupSubject("system:authenticated")),
	}
}

// accountReferences returns a service account's pull secrets and all subjects by which a binding can name it.
func accountReferences(o client.Object) []wire.Key {
	return append(references.OfServiceAccount(o.(*corev1.ServiceAccount)), accountSubjects(o.GetNamespace(), o.GetName())...)
}

// subjectNames returns the subjects that a binding names. A binding in a namespace adds its own namespace to a service
// account without one.
func subjectNames(namespace string, subjects []rbacv1.Subject) []string {
	var names []string
	for _, s := range subjects {
		name := ""
		switch s.Kind {
		case rbacv1.UserKind:
			name = userSubject(s.Name)
		case rbacv1.GroupKind:
			name = groupSubject(s.Name)
		case rbacv1.ServiceAccountKind:
			in := s.Namespace
			if in == "" {
				in = namespace
			}
			name = userSubject(accountUser(in, s.Name))
		default:
			continue
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// roleRefs returns the role of a binding.
func roleRefs(namespace string, ref rbacv1.RoleRef) []wire.Key {
	switch {
	case ref.Name == "":
		return nil
	case ref.Kind == "ClusterRole":
		return []wire.Key{{Group: rbacv1.GroupName, Resource: "clusterroles", Name: ref.Name}}
	case ref.Kind == "Role" && namespace != "":
		return []wire.Key{{Group: rbacv1.GroupName, Resource: "roles", Namespace: namespace, Name: ref.Name}}
	}
	return nil
}

// rbacKinds returns the RBAC kinds.
func rbacKinds() []*kindSpec {
	rbac := rbacv1.SchemeGroupVersion.WithKind
	return []*kindSpec{
		{gvk: rbac("ClusterRole"), resource: "clusterroles", object: func() client.Object { return &rbacv1.ClusterRole{} }},
		{gvk: rbac("Role"), resource: "roles", object: func() client.Object { return &rbacv1.Role{} }},
		{
			gvk: rbac("ClusterRoleBinding"), resource: "clusterrolebindings",
			object:     func() client.Object { return &rbacv1.ClusterRoleBinding{} },
			references: func(o client.Object) []wire.Key { return roleRefs("", o.(*rbacv1.ClusterRoleBinding).RoleRef) },
			subjects:   func(o client.Object) []string { return subjectNames("", o.(*rbacv1.ClusterRoleBinding).Subjects) },
		},
		{
			gvk: rbac("RoleBinding"), resource: "rolebindings", object: func() client.Object { return &rbacv1.RoleBinding{} },
			references: func(o client.Object) []wire.Key { return roleRefs(o.GetNamespace(), o.(*rbacv1.RoleBinding).RoleRef) },
			subjects: func(o client.Object) []string {
				return subjectNames(o.GetNamespace(), o.(*rbacv1.RoleBinding).Subjects)
			},
		},
	}
}

// bindingsOf returns the bindings that name a subject, sorted.
func (e *Engine) bindingsOf(subject string) []wire.Key {
	var keys []wire.Key
	for k, store := range e.stores {
		if k.subjects == nil {
			continue
		}
		found, err := store.ByIndex(subjectIndex, subject)
		if err != nil {
			e.log.Error("bindings not listed", zap.String("subject", subject), zap.Error(err))
			continue
		}
		for _, o := range found {
			o := o.(client.Object)
			if !e.cfg.Protected.Contains(o.GetNamespace()) {
				keys = append(keys, k.keyOf(o.GetNamespace(), o.GetName()))
			}
		}
	}
	sortKeys(keys)
	return keys
}

func sortKeys(keys []wire.Key) { slices.SortFunc(keys, wire.Key.Compare) }

// refreshBindings updates the graph with the subjects that a binding names now, and named before.
func (e *Engine) refreshBindings(k *kindSpec, objects ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, object := range objects {
		if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
			object = last.Obj
		}
		if o, ok := object.(client.Object); ok {
			for _, subject := range k.subjects(o) {
				e.graph.refreshReferences(subjectKey(subject))
			}
		}
	}
}

// RunsServiceAccount reports whether a pod that has not ended runs on a node with a service account. It is false for a
// protected namespace, as no node is given such a pod. The engine must be Ready.
func (e *Engine) RunsServiceAccount(node, namespace, account string) bool {
	if e.cfg.Protected.Contains(namespace) {
		return false
	}
	_, store := e.lookupKind(groupResource{resource: "pods"})
	if store == nil {
		return false
	}
	found, err := store.ByIndex(nodeIndex, node)
	if err != nil {
		e.log.Error("pods of node not listed", zap.String("node", node), zap.Error(err))
	}
	return slices.ContainsFunc(found, func(o any) bool {
		pod, ok := o.(*corev1.Pod)
		return ok && pod.Namespace == namespace && runsAs(pod, account)
	})
}

// runsAs reports whether a pod proves that its node may act as a service account. A mirror pod proves nothing: the node
// itself creates it.
func runsAs(pod *corev1.Pod, account string) bool {
	return !references.IsMirror(pod) && pod.Spec.ServiceAccountName == account && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// HasNode reports whether a node has a Node object. The engine must be Ready.
func (e *Engine) HasNode(node string) bool {
	return e.isCached(wire.Key{Resource: "nodes", Name: node})
}
