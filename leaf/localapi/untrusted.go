package localapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/auth"
	"github.com/frond-edge/frond/leaf/localapi/caller"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/objectstore"
	"github.com/frond-edge/frond/leaf/localapi/records"
	"github.com/frond-edge/frond/leaf/localapi/respond"
	"github.com/frond-edge/frond/leaf/store"
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
		return rs.server.serveReview
	case !reads || info.Subresource != "":
		return rs.server.forwardToCloud
	}
	return func(w http.ResponseWriter, req *http.Request) {
		rt, err := rs.untrustedRoute(req.Context(), gvr)
		switch {
		case err != nil:
			respond.Error(w, req, err)
		case rt == nil:
			writeNotFound(w, req)
		case info.Namespace != "" && !rt.endpoint.resource.Namespaced && (gvr != kinds.CoreResource("namespaces") || info.Name != info.Namespace):
			writeNotFound(w, req)
		case info.Verb == "get":
			handlers.GetResource(rt.endpoint, rt.scope)(w, req)
		default:
			rs.server.serveList(w, req, info, rt)
		}
	}
}

func writeNotFound(w http.ResponseWriter, req *http.Request) {
	respond.Error(w, req, apierrors.NewGenericServerResponse(http.StatusNotFound, strings.ToLower(req.Method), schema.GroupResource{}, "", "", 0, false))
}

// serveList serves lists and watches. Meanwhile, and for a grace period, the cloud is asked to keep this gateway's copy complete.
func (s *Server) serveList(w http.ResponseWriter, req *http.Request, info *request.RequestInfo, rt *route) {
	e, watching := rt.endpoint, info.Verb == "watch"
	serve := handlers.ListResource(e, e, rt.scope, watching, minWatchTime)
	if e.isAlwaysComplete(info.FieldSelector) {
		serve(w, req)
		return
	}
	switch {
	case e.isRelayed() && watching:
		serve(w, req)
		return
	case e.isRelayed():
		s.forwardUnfollowedList(w, req, false, nil)
		return
	}
	user := caller.Of(req.Context()).User.GetName()
	release, err := s.scopes.Acquire(req.Context(), e.scopeOf(info.Namespace), user)
	if err != nil {
		respond.Error(w, req, err)
		return
	}
	defer release()
	if err = s.scopes.WaitComplete(req.Context(), e.scopeOf(info.Namespace), user, s.isOnline()); err == nil {
		serve(w, req)
		return
	}
	if apierrors.IsServiceUnavailable(err) {
		respond.Error(w, req, err)
		return
	}
	s.forwardUnfollowedList(w, req, watching, err)
}

// forwardUnfollowedList forwards a list that is not kept complete at this gateway to the cloud, and refuses to watch it.
func (s *Server) forwardUnfollowedList(w http.ResponseWriter, req *http.Request, watching bool, refusal error) {
	if watching {
		respond.Error(w, req, refusal)
		return
	}
	if revision, err := kinds.RevisionOf(req.URL.Query().Get("resourceVersion")); err == nil && revision > 0 {
		respond.Error(w, req, apierrors.NewResourceExpired("the cloud has stopped sending this to the gateway, and knows no version of it: list again"))
		return
	}
	s.forwardToCloud(w, req)
}

func (e *endpoint) scopeOf(namespace string) wire.Scope {
	return wire.Scope{Group: e.resource.GVR.Group, Version: e.resource.GVR.Version, Resource: e.resource.GVR.Resource, Namespace: namespace}
}

// isAlwaysComplete reports whether a list needs no scope: every gateway has the kinds delivered to all, and its own pods and node.
func (e *endpoint) isAlwaysComplete(selector string) bool {
	if !e.server.isAttached() {
		return false
	}
	only := func(field string) bool {
		parsed, err := fields.ParseSelector(selector)
		if err != nil {
			return false
		}
		value, ok := parsed.RequiresExactMatch(field)
		return ok && value == e.server.cfg.Node
	}
	switch {
	case e.resource.GVR == kinds.CoreResource("pods"):
		return only(kinds.FieldNodeName)
	case e.resource.GVR == kinds.CoreResource("nodes"):
		return only(kinds.FieldName)
	case e.resource.OfNode:
		return only(kinds.FieldNodeName) && e.server.checkKindDelivered(e.resource) == nil
	}
	return e.resource.Completeness == kinds.FullyDelivered
}

// holdsAll reports whether the gateway holds every object of a list or watch in a namespace.
func (e *endpoint) holdsAll(namespace string, opts *metainternalversion.ListOptions) bool {
	selector := ""
	if opts != nil && opts.FieldSelector != nil {
		selector = opts.FieldSelector.String()
	}
	if e.isAlwaysComplete(selector) {
		return true
	}
	kind, ok := e.server.scopes.Complete(e.scopeOf(namespace))
	return ok && kind.Version == e.resource.GVR.Version
}

// findObject answers a get. A stored object is kept up to date. Any other is absent if the gateway holds all of its kind;
// else the cloud is asked. That answer keeps the cloud's version, as its reader may want to write: a Lease, for example.
func (e *endpoint) findObject(ctx context.Context, key wire.Key) (runtime.Object, error) {
	entry, err := e.objects.Get(key)
	if err == nil && e.hasServedVersion(entry) {
		obj, _, err := e.resource.Decode(entry)
		return obj, err
	}
	if err != nil && e.holdsAll(key.Namespace, nil) && e.resource.Completeness != kinds.FullyDelivered {
		return nil, e.notFound(key.Name)
	}
	obj := e.resource.Object()
	if err := e.server.cloud.Object(ctx, http.MethodGet, e.resource.CloudPath(key), nil, obj); err != nil {
		return nil, err
	}
	if e.resource.Decorate != nil {
		e.resource.Decorate(obj)
	}
	return obj, nil
}

// hasServedVersion reports whether an object is stored in the version that this endpoint serves.
func (e *endpoint) hasServedVersion(entry store.Entry) bool {
	var t metav1.TypeMeta
	if err := json.Unmarshal(entry.Object, &t); err != nil {
		return false
	}
	return t.APIVersion == "" || t.APIVersion == e.resource.GVR.GroupVersion().String()
}

// untrustedRoute returns the route of a kind for programs other than the node, created at first use; nil if there is no
// such kind. The error is a status: the existence of the kind is not known.
func (rs *routes) untrustedRoute(ctx context.Context, gvr schema.GroupVersionResource) (*route, error) {
	rs.mu.Lock()
	rt := rs.untrustedRoutes[gvr]
	rs.mu.Unlock()
	if rt != nil {
		return rt, nil
	}
	r, err := rs.resolveKind(ctx, gvr)
	if err != nil || r == nil {
		return nil, err
	}
	e := &endpoint{server: rs.server, resource: r, objects: objectstore.Persistent{Store: rs.server.store}, untrusted: true}
	scope, err := newScope(e, rs.server.cfg.MaxRequestBytes)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	rt = &route{endpoint: e, scope: scope}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.untrustedRoutes[gvr] = rt
	return rt, nil
}

// resolveKind describes a kind from this gateway's own table or from the cloud's description, typed if this program has the type.
func (rs *routes) resolveKind(ctx context.Context, gvr schema.GroupVersionResource) (*kinds.Resource, error) {
	if own := rs.nodeRoutes[gvr][""]; own != nil {
		r := *own.endpoint.resource
		r.LocalWrites, r.Sink, r.AnyLabel = nil, kinds.ToNobody, r.Placement == kinds.InMemory
		r.StoredForm, r.Validate = nil, nil // objects in memory are the node's; these programs get the cloud's answers
		return &r, nil
	}
	described, err := rs.server.catalog.FindKind(ctx, gvr)
	if err != nil || described == nil {
		return nil, err
	}
	r := &kinds.Resource{
		GVR: gvr, Kind: described.Kind, Singular: described.SingularName, ShortNames: described.ShortNames, Namespaced: described.Namespaced,
	}
	kind, list := r.GVK(), gvr.GroupVersion().WithKind(described.Kind+"List")
	if scheme.Scheme.Recognizes(kind) && scheme.Scheme.Recognizes(list) {
		r.Object, r.List, r.DecodeCache = typedConstructor(kind), typedConstructor(list), &kinds.DecodeCache{}
		return r, nil
	}
	r.Schemaless = true
	r.Object = func() runtime.Object {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(kind)
		return u
	}
	r.List = func() runtime.Object {
		u := &unstructured.UnstructuredList{}
		u.SetGroupVersionKind(list)
		return u
	}
	return r, nil
}

func typedConstructor(kind schema.GroupVersionKind) func() runtime.Object {
	return func() runtime.Object {
		obj, err := scheme.Scheme.New(kind)
		if err != nil {
			panic(err) // it is registered: resolveKind has checked
		}
		return obj
	}
}
