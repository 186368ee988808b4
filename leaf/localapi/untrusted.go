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
	"github.com/frond-edge/frond/leaf/store"
)

// other finds who answers a program that is not the node: reads of every kind come from the store, as far as the cloud keeps
// it complete for this gateway; everything else is the cloud's to judge, by the program's own token.
func (rs *routes) other(info *request.RequestInfo) http.HandlerFunc {
	gvr := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	reads := info.Verb == "get" || info.Verb == "list" || info.Verb == "watch"
	switch {
	case gvr.Group == frondGroup:
		return missing // what the store keeps beside Kubernetes' objects: other programs' tokens, for one
	case info.Verb == "create" && isReview(info):
		return rs.s.review
	case !reads || info.Subresource != "":
		return rs.s.forward
	}
	return func(w http.ResponseWriter, req *http.Request) {
		rt, err := rs.another(req.Context(), gvr)
		switch {
		case err != nil:
			fail(w, req, err)
		case rt == nil:
			missing(w, req)
		case info.Namespace != "" && !rt.endpoint.r.namespaced && (gvr != v1("namespaces") || info.Name != info.Namespace):
			missing(w, req)
		case info.Verb == "get":
			handlers.GetResource(rt.endpoint, rt.scope)(w, req)
		default:
			rs.s.list(w, req, info, rt)
		}
	}
}

func missing(w http.ResponseWriter, req *http.Request) {
	fail(w, req, apierrors.NewGenericServerResponse(http.StatusNotFound, strings.ToLower(req.Method), schema.GroupResource{}, "", "", 0, false))
}

// list serves lists and watches. While it runs, and for a while after, the cloud is asked to keep this gateway's copy complete.
func (s *Server) list(w http.ResponseWriter, req *http.Request, info *request.RequestInfo, rt *route) {
	e, watching := rt.endpoint, info.Verb == "watch"
	serve := handlers.ListResource(e, e, rt.scope, watching, minWatchTime)
	if e.complete(info.FieldSelector) {
		serve(w, req)
		return
	}
	switch {
	case e.relayed() && watching:
		serve(w, req)
		return
	case e.relayed():
		s.unfollowedList(w, req, false, nil)
		return
	}
	user := callerOf(req.Context()).user.GetName()
	release, err := s.scopes.hold(req.Context(), e.scopeOf(info.Namespace), user)
	if err != nil {
		fail(w, req, err)
		return
	}
	defer release()
	if err = s.scopes.await(req.Context(), e.scopeOf(info.Namespace), user, s.online()); err == nil {
		serve(w, req)
		return
	}
	if apierrors.IsServiceUnavailable(err) {
		fail(w, req, err)
		return
	}
	s.unfollowedList(w, req, watching, err)
}

// unfollowedList asks the cloud for a list that it does not keep at this gateway, and refuses to watch it.
func (s *Server) unfollowedList(w http.ResponseWriter, req *http.Request, watching bool, refusal error) {
	if watching {
		fail(w, req, refusal)
		return
	}
	if revision, err := revisionOf(req.URL.Query().Get("resourceVersion")); err == nil && revision > 0 {
		fail(w, req, apierrors.NewResourceExpired("the cloud has stopped sending this to the gateway, and knows no version of it: list again"))
		return
	}
	s.forward(w, req)
}

func (e *endpoint) scopeOf(namespace string) wire.Scope {
	return wire.Scope{Group: e.r.gvr.Group, Version: e.r.gvr.Version, Resource: e.r.gvr.Resource, Namespace: namespace}
}

// complete says whether a list needs no scope: every gateway has what is delivered to all, and its own pods and node.
func (e *endpoint) complete(selector string) bool {
	if !e.s.attached() {
		return false
	}
	only := func(field string) bool {
		parsed, err := fields.ParseSelector(selector)
		if err != nil {
			return false
		}
		value, ok := parsed.RequiresExactMatch(field)
		return ok && value == e.s.cfg.Node
	}
	switch {
	case e.r.gvr == v1("pods"):
		return only(fieldNodeName)
	case e.r.gvr == v1("nodes"):
		return only(fieldName)
	case e.r.ofNode:
		return only(fieldNodeName) && e.s.deliveredKind(e.r) == nil
	}
	return e.r.knowledge == delivered
}

// holds says whether a list or watch in a namespace tells all there is.
func (e *endpoint) holds(namespace string, opts *metainternalversion.ListOptions) bool {
	selector := ""
	if opts != nil && opts.FieldSelector != nil {
		selector = opts.FieldSelector.String()
	}
	if e.complete(selector) {
		return true
	}
	kind, ok := e.s.scopes.complete(e.scopeOf(namespace))
	return ok && kind.Version == e.r.gvr.Version
}

// find answers a get: what is held is kept up to date, what is not does not exist if the gateway holds all of its kind, and
// else is the cloud's to say. That answer keeps the cloud's version, as its reader may want to write: a Lease, for one.
func (e *endpoint) find(ctx context.Context, key wire.Key) (runtime.Object, error) {
	entry, err := e.objects.Get(key)
	if err == nil && e.inVersion(entry) {
		obj, _, err := e.r.decode(entry)
		return obj, err
	}
	if err != nil && e.holds(key.Namespace, nil) && e.r.knowledge != delivered {
		return nil, e.notFound(key.Name)
	}
	obj := e.r.object()
	if err := e.s.call(ctx, http.MethodGet, e.r.path(key), nil, obj); err != nil {
		return nil, err
	}
	if e.r.adorn != nil {
		e.r.adorn(obj)
	}
	return obj, nil
}

// inVersion says whether an object is held in the version that this endpoint serves.
func (e *endpoint) inVersion(entry store.Entry) bool {
	var t metav1.TypeMeta
	if err := json.Unmarshal(entry.Object, &t); err != nil {
		return false
	}
	return t.APIVersion == "" || t.APIVersion == e.r.gvr.GroupVersion().String()
}

// another returns the route of a kind as programs see it, made at first use; nil if there is no such kind. The error is a
// status: it is not known whether there is.
func (rs *routes) another(ctx context.Context, gvr schema.GroupVersionResource) (*route, error) {
	rs.mu.Lock()
	rt := rs.others[gvr]
	rs.mu.Unlock()
	if rt != nil {
		return rt, nil
	}
	r, err := rs.kindOf(ctx, gvr)
	if err != nil || r == nil {
		return nil, err
	}
	e := &endpoint{s: rs.s, r: r, objects: stored{rs.s.store}, follows: true}
	scope, err := newScope(e, rs.s.cfg.MaxRequestBytes)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	rt = &route{endpoint: e, scope: scope}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.others[gvr] = rt
	return rt, nil
}

// kindOf describes a kind: as this gateway's own table has it, or as the cloud says, typed where this program knows the type.
func (rs *routes) kindOf(ctx context.Context, gvr schema.GroupVersionResource) (*resource, error) {
	if own := rs.served[gvr][""]; own != nil {
		r := *own.endpoint.r
		r.local, r.sink, r.anyLabel = nil, toNobody, r.home == inMemory
		r.stored, r.validate = nil, nil // what is in memory is the node's; these programs are told what the cloud says
		return &r, nil
	}
	described, err := rs.s.catalog.find(ctx, gvr)
	if err != nil || described == nil {
		return nil, err
	}
	r := &resource{
		gvr: gvr, kind: described.Kind, singular: described.SingularName, short: described.ShortNames, namespaced: described.Namespaced,
	}
	kind, list := r.gvk(), gvr.GroupVersion().WithKind(described.Kind+"List")
	if scheme.Scheme.Recognizes(kind) && scheme.Scheme.Recognizes(list) {
		r.object, r.list, r.seen = typedAs(kind), typedAs(list), &seen{}
		return r, nil
	}
	r.schemaless = true
	r.object = func() runtime.Object {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(kind)
		return u
	}
	r.list = func() runtime.Object {
		u := &unstructured.UnstructuredList{}
		u.SetGroupVersionKind(list)
		return u
	}
	return r, nil
}

func typedAs(kind schema.GroupVersionKind) func() runtime.Object {
	return func() runtime.Object {
		obj, err := scheme.Scheme.New(kind)
		if err != nil {
			panic(err) // it is registered: kindOf has looked
		}
		return obj
	}
}
