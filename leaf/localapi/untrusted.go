package localapi

import (
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/frond-edge/frond/leaf/localapi/auth"
	"github.com/frond-edge/frond/leaf/localapi/caller"
	"github.com/frond-edge/frond/leaf/localapi/completeness"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/records"
	"github.com/frond-edge/frond/leaf/localapi/respond"
)

// untrustedHandler selects the handler for programs other than the node. Reads of every kind are answered from the store, as far
// as the cloud keeps it complete for this gateway. For everything else the cloud decides, by the program's own token.
func (rs *routes) untrustedHandler(info *request.RequestInfo) http.HandlerFunc {
	gvr := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	reads := info.Verb == "get" || info.Verb == "list" || info.Verb == "watch"
	switch {
	case gvr.Group == records.Group:
		return writeNotFound // the store's records beside Kubernetes' objects, such as other programs' tokens
	case info.Verb == "create" && auth.IsReview(info):
		return rs.forwarder.ServeReview
	case !reads || info.Subresource != "":
		return rs.forwarder.Forward
	}
	return func(w http.ResponseWriter, req *http.Request) {
		rt, err := rs.table.programRoute(req.Context(), gvr)
		switch {
		case err != nil:
			respond.Error(w, req, err)
		case rt == nil:
			writeNotFound(w, req)
		case info.Namespace != "" && !rt.resource.Namespaced && (gvr != kinds.CoreResource("namespaces") || info.Name != info.Namespace):
			writeNotFound(w, req)
		case info.Verb == "get":
			handlers.GetResource(rt.reader, rt.scope)(w, req)
		default:
			rs.serveList(w, req, info, rt)
		}
	}
}

func writeNotFound(w http.ResponseWriter, req *http.Request) {
	respond.Error(w, req, apierrors.NewGenericServerResponse(http.StatusNotFound, strings.ToLower(req.Method), schema.GroupResource{}, "", "", 0, false))
}

// serveList serves lists and watches. Meanwhile, and for a grace period, the cloud is asked to keep this gateway's copy complete.
func (rs *routes) serveList(w http.ResponseWriter, req *http.Request, info *request.RequestInfo, rt *route) {
	watching, relayed := info.Verb == "watch", rt.resource.Placement == kinds.InMemory
	watcher := rest.Watcher(rt.reader)
	if relayed {
		watcher = rs.relays.Of(rt.resource)
	}
	serve := handlers.ListResource(rt.reader, watcher, rt.scope, watching, minWatchTime)
	switch {
	case rs.complete.IsAlwaysComplete(rt.resource, info.FieldSelector), relayed && watching:
		serve(w, req)
		return
	case relayed:
		rs.forwardUnfollowedList(w, req, false, nil)
		return
	}
	scope, user := completeness.ScopeOf(rt.resource, info.Namespace), caller.Of(req.Context()).User.GetName()
	release, err := rs.scopes.Acquire(req.Context(), scope, user)
	if err != nil {
		respond.Error(w, req, err)
		return
	}
	defer release()
	if err = rs.scopes.WaitComplete(req.Context(), scope, user, rs.online()); err == nil {
		serve(w, req)
		return
	}
	if apierrors.IsServiceUnavailable(err) {
		respond.Error(w, req, err)
		return
	}
	rs.forwardUnfollowedList(w, req, watching, err)
}

// forwardUnfollowedList forwards a list that is not kept complete at this gateway to the cloud, and refuses to watch it.
func (rs *routes) forwardUnfollowedList(w http.ResponseWriter, req *http.Request, watching bool, refusal error) {
	if watching {
		respond.Error(w, req, refusal)
		return
	}
	if revision, err := kinds.RevisionOf(req.URL.Query().Get("resourceVersion")); err == nil && revision > 0 {
		respond.Error(w, req, apierrors.NewResourceExpired("the cloud has stopped sending this to the gateway, and knows no version of it: list again"))
		return
	}
	rs.forwarder.Forward(w, req)
}
