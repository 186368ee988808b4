package kinds

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/references"
)

// A node authorizes the requests of its pods, also without a link. Each service account there therefore needs the
// bindings that name it or its groups, and these need their roles. Between an account and its bindings the graph has
// vertices that are never published: the subjects of bindings. An event of a binding refreshes only these.

// subjectsResource is the resource of a subject's vertex.
const subjectsResource = "subjects"

// SubjectKey returns the key of a subject's vertex.
func SubjectKey(subject string) wire.Key {
	return wire.Key{Group: "frond.io", Resource: subjectsResource, Name: subject}
}

// IsSubject reports whether a key belongs to a subject's vertex.
func IsSubject(key wire.Key) bool { return key.Group == "frond.io" && key.Resource == subjectsResource }

func userSubject(name string) string  { return "user " + name }
func groupSubject(name string) string { return "group " + name }

func accountUser(namespace, name string) string {
	return "system:serviceaccount:" + namespace + ":" + name
}

// accountSubjects returns all subjects by which a binding can name a service account.
func accountSubjects(namespace, name string) []wire.Key {
	return []wire.Key{
		SubjectKey(userSubject(accountUser(namespace, name))),
		SubjectKey(groupSubject("system:serviceaccounts")),
		SubjectKey(groupSubject("system:serviceaccounts:" + namespace)),
		SubjectKey(groupSubject("system:authenticated")),
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
func rbacKinds() []*Spec {
	rbac := rbacv1.SchemeGroupVersion.WithKind
	return []*Spec{
		{GVK: rbac("ClusterRole"), Resource: "clusterroles", Object: func() client.Object { return &rbacv1.ClusterRole{} }},
		{GVK: rbac("Role"), Resource: "roles", Object: func() client.Object { return &rbacv1.Role{} }},
		{
			GVK: rbac("ClusterRoleBinding"), Resource: "clusterrolebindings",
			Object:     func() client.Object { return &rbacv1.ClusterRoleBinding{} },
			References: func(o client.Object) []wire.Key { return roleRefs("", o.(*rbacv1.ClusterRoleBinding).RoleRef) },
			Subjects:   func(o client.Object) []string { return subjectNames("", o.(*rbacv1.ClusterRoleBinding).Subjects) },
		},
		{
			GVK: rbac("RoleBinding"), Resource: "rolebindings", Object: func() client.Object { return &rbacv1.RoleBinding{} },
			References: func(o client.Object) []wire.Key { return roleRefs(o.GetNamespace(), o.(*rbacv1.RoleBinding).RoleRef) },
			Subjects: func(o client.Object) []string {
				return subjectNames(o.GetNamespace(), o.(*rbacv1.RoleBinding).Subjects)
			},
		},
	}
}
