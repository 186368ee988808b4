package kinds

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
)

// CloudPath returns the cloud's path of an object, of its collection for an empty name, and of all namespaces for an empty
// namespace; unescaped, as in wire.KubeRequest.
func (r *Resource) CloudPath(key wire.Key) string {
	path := "/apis/" + r.GVR.Group
	if r.GVR.Group == "" {
		path = "/api"
	}
	path += "/" + r.GVR.Version
	if r.Namespaced && key.Namespace != "" {
		path += "/namespaces/" + key.Namespace
	}
	path += "/" + r.GVR.Resource
	if key.Name != "" {
		path += "/" + key.Name
	}
	return path
}

// ListSubresources returns "" and the subresources that can be written here.
func (r *Resource) ListSubresources() []string {
	subs := []string{""}
	for _, w := range r.LocalWrites {
		if _, sub, ok := strings.Cut(w, "/"); ok && !slices.Contains(subs, sub) {
			subs = append(subs, sub)
		}
	}
	return subs
}

// ListAPIResources lists the resource and its subresources with their verbs; writes that go to the cloud are verbs too.
func (r *Resource) ListAPIResources() []metav1.APIResource {
	verbs := metav1.Verbs{"create", "delete", "get", "list", "patch", "update", "watch"}
	if r.GVR.Resource == "events" {
		verbs = slices.DeleteFunc(verbs, func(v string) bool { return v == "delete" })
	}
	out := []metav1.APIResource{{
		Name: r.GVR.Resource, SingularName: r.Singular, Namespaced: r.Namespaced, Kind: r.Kind, ShortNames: r.ShortNames, Verbs: verbs,
	}}
	for _, sub := range r.ListSubresources()[1:] {
		out = append(out, metav1.APIResource{
			Name: r.GVR.Resource + "/" + sub, Namespaced: r.Namespaced, Kind: r.Kind, Verbs: metav1.Verbs{"get", "patch", "update"},
		})
	}
	return out
}
