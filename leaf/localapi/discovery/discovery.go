// Package discovery serves the documents by which clients find the kinds of an API.
package discovery

import (
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/respond"
)

// kubeVersion is the Kubernetes version of this API; it must be the version of the k8s.io modules in go.mod.
const kubeVersion = "v1.37.1"

// Documents holds the discovery documents. Until the cloud has sent its kinds (see kindCatalog), they describe the table of resources.
type Documents struct {
	Documents map[string]runtime.Object // by path
}

// Of returns the documents of a table of resources.
func Of(table []*kinds.Resource) *Documents {
	lists := map[schema.GroupVersion]*metav1.APIResourceList{}
	groups := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	d := &Documents{Documents: map[string]runtime.Object{}}
	for _, r := range table {
		if r.Unlisted {
			continue
		}
		gv := r.GVR.GroupVersion()
		list := lists[gv]
		if list == nil {
			list = &metav1.APIResourceList{
				TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv.String(),
			}
			lists[gv] = list
			if gv.Group == "" {
				d.Documents["/api/"+gv.Version] = list
			} else {
				v := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
				group := metav1.APIGroup{Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v}
				groups.Groups = append(groups.Groups, group)
				group.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
				d.Documents["/apis/"+gv.Group] = &group
				d.Documents["/apis/"+gv.String()] = list
			}
		}
		list.APIResources = append(list.APIResources, r.ListAPIResources()...)
	}
	d.Documents["/apis"] = &groups
	d.Documents["/api"] = coreVersions()
	return d
}

func coreVersions() *metav1.APIVersions {
	return &metav1.APIVersions{
		TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"},
		ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{},
	}
}

// ServeDocument answers a request for a document, 404 for one that is not there.
func (d *Documents) ServeDocument(w http.ResponseWriter, req *http.Request, path string) {
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		respond.Error(w, req, apierrors.NewMethodNotSupported(schema.GroupResource{}, strings.ToLower(req.Method)))
		return
	}
	if path == "/version" {
		responsewriters.WriteRawJSON(http.StatusOK, version.Info{
			Major: "1", Minor: "37", GitVersion: kubeVersion, Platform: "linux",
		}, w)
		return
	}
	document, ok := d.Documents[path]
	if !ok {
		respond.Error(w, req, apierrors.NewGenericServerResponse(http.StatusNotFound, strings.ToLower(req.Method), schema.GroupResource{}, "",
			"this gateway does not serve "+path, 0, false))
		return
	}
	responsewriters.WriteObjectNegotiated(scheme.Codecs, negotiation.DefaultEndpointRestrictions, schema.GroupVersion{Version: "v1"},
		w, req, http.StatusOK, document, false)
}

// FromCluster returns the documents of discovery's older form.
func FromCluster(groups *metav1.APIGroupList, lists map[schema.GroupVersion]*metav1.APIResourceList) *Documents {
	d := &Documents{Documents: map[string]runtime.Object{}}
	named := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, g := range groups.Groups {
		if g.Name == "" {
			continue // it has its own form of document
		}
		g.TypeMeta = metav1.TypeMeta{}
		named.Groups = append(named.Groups, g)
		g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
		d.Documents["/apis/"+g.Name] = &g
	}
	for gv, list := range lists {
		list.TypeMeta = metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}
		if list.GroupVersion = gv.String(); gv.Group == "" {
			d.Documents["/api/"+gv.Version] = list
		} else {
			d.Documents["/apis/"+gv.String()] = list
		}
	}
	d.Documents["/apis"] = &named
	d.Documents["/api"] = coreVersions()
	return d
}
