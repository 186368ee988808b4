package localapi

import (
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/client-go/kubernetes/scheme"
)

// kubeVersion is the Kubernetes version of this API; it must be the version of the k8s.io modules in go.mod.
const kubeVersion = "v1.37.1"

// discovery holds the discovery documents. Until the cloud has sent its kinds (see kindCatalog), they describe the table of resources.
type discovery struct {
	documents map[string]runtime.Object // by path
}

func newDiscovery(table []*resource) *discovery {
	lists := map[schema.GroupVersion]*metav1.APIResourceList{}
	groups := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	d := &discovery{documents: map[string]runtime.Object{}}
	for _, r := range table {
		if r.unlisted {
			continue
		}
		gv := r.gvr.GroupVersion()
		list := lists[gv]
		if list == nil {
			list = &metav1.APIResourceList{
				TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv.String(),
			}
			lists[gv] = list
			if gv.Group == "" {
				d.documents["/api/"+gv.Version] = list
			} else {
				v := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
				group := metav1.APIGroup{Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v}
				groups.Groups = append(groups.Groups, group)
				group.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
				d.documents["/apis/"+gv.Group] = &group
				d.documents["/apis/"+gv.String()] = list
			}
		}
		list.APIResources = append(list.APIResources, r.listAPIResources()...)
	}
	d.documents["/apis"] = &groups
	d.documents["/api"] = coreVersions()
	return d
}

func coreVersions() *metav1.APIVersions {
	return &metav1.APIVersions{
		TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"},
		ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{},
	}
}

// listAPIResources lists the resource and its subresources with their verbs; writes that go to the cloud are verbs too.
func (r *resource) listAPIResources() []metav1.APIResource {
	verbs := metav1.Verbs{"create", "delete", "get", "list", "patch", "update", "watch"}
	if r.gvr.Resource == "events" {
		verbs = slices.DeleteFunc(verbs, func(v string) bool { return v == "delete" })
	}
	out := []metav1.APIResource{{
		Name: r.gvr.Resource, SingularName: r.singular, Namespaced: r.namespaced, Kind: r.kind, ShortNames: r.shortNames, Verbs: verbs,
	}}
	for _, sub := range r.listSubresources()[1:] {
		out = append(out, metav1.APIResource{
			Name: r.gvr.Resource + "/" + sub, Namespaced: r.namespaced, Kind: r.kind, Verbs: metav1.Verbs{"get", "patch", "update"},
		})
	}
	return out
}

func (d *discovery) serveDocument(w http.ResponseWriter, req *http.Request, path string) {
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		writeError(w, req, apierrors.NewMethodNotSupported(schema.GroupResource{}, strings.ToLower(req.Method)))
		return
	}
	if path == "/version" {
		responsewriters.WriteRawJSON(http.StatusOK, version.Info{
			Major: "1", Minor: "37", GitVersion: kubeVersion, Platform: "linux",
		}, w)
		return
	}
	document, ok := d.documents[path]
	if !ok {
		writeError(w, req, apierrors.NewGenericServerResponse(http.StatusNotFound, strings.ToLower(req.Method), schema.GroupResource{}, "",
			"this gateway does not serve "+path, 0, false))
		return
	}
	responsewriters.WriteObjectNegotiated(scheme.Codecs, negotiation.DefaultEndpointRestrictions, schema.GroupVersion{Version: "v1"},
		w, req, http.StatusOK, document, false)
}
