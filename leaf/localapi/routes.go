package localapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/frond-edge/frond/api/restart"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/auth"
	"github.com/frond-edge/frond/leaf/localapi/caller"
	"github.com/frond-edge/frond/leaf/localapi/discovery"
	"github.com/frond-edge/frond/leaf/localapi/issuer"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/limit"
	"github.com/frond-edge/frond/leaf/localapi/objectstore"
	"github.com/frond-edge/frond/leaf/localapi/podproxy"
	"github.com/frond-edge/frond/leaf/localapi/respond"
)

// minWatchTime is when the server ends a watch without a timeout, plus a random time of up to the same length: as upstream.
const minWatchTime = 30 * time.Minute

// routes is the handler of all listeners.
type routes struct {
	server      *Server
	infoFactory *request.RequestInfoFactory
	nodeRoutes  map[schema.GroupVersionResource]map[string]*route // by subresource
	discovery   *discovery.Documents

	mu              sync.Mutex // guards all fields below
	untrustedRoutes map[schema.GroupVersionResource]*route
}

// route is one resource or subresource with the data that the endpoint handlers need.
type route struct {
	endpoint *endpoint
	scope    *handlers.RequestScope
}

func (s *Server) newRoutes() (*routes, error) {
	table := kinds.Served()
	rs := &routes{
		server: s,
		infoFactory: &request.RequestInfoFactory{
			APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api"),
		},
		nodeRoutes:      map[schema.GroupVersionResource]map[string]*route{},
		discovery:       discovery.Of(table),
		untrustedRoutes: map[schema.GroupVersionResource]*route{},
	}
	memories := map[schema.GroupVersionResource]*objectstore.Memory{}
	for _, r := range table {
		r.Decorate, r.DecodeCache = s.decoratorFor(r), &kinds.DecodeCache{}
		var where objectstore.Store = objectstore.Persistent{Store: s.store}
		if r.Placement == kinds.InMemory {
			if memories[r.StoredGVR()] == nil {
				memories[r.StoredGVR()] = objectstore.NewMemory(r.GVR.Resource)
			}
			where = memories[r.StoredGVR()]
		}
		rs.nodeRoutes[r.GVR] = map[string]*route{}
		for _, sub := range r.ListSubresources() {
			e := &endpoint{server: s, resource: r, objects: where, subresource: sub}
			scope, err := newScope(e, s.cfg.MaxRequestBytes)
			if err != nil {
				return nil, fmt.Errorf("serve %s: %w", r.GVR.Resource, err)
			}
			rs.nodeRoutes[r.GVR][sub] = &route{endpoint: e, scope: scope}
		}
	}
	return rs, nil
}

// newScope describes a resource to the endpoint handlers. Its hub version is the served version itself, as for custom
// resources, so no internal types and no conversions are needed.
func newScope(e *endpoint, maxBytes int64) (*handlers.RequestScope, error) {
	r := e.resource
	serializer := runtime.NegotiatedSerializer(scheme.Codecs)
	if r.Schemaless {
		serializer = kinds.NewSchemalessSerializer()
	}
	var fieldManager *managedfields.FieldManager
	var err error
	if len(r.LocalWrites) > 0 {
		// Field managers are recorded only for objects that were ever applied; the gateway performs no server-side apply.
		fieldManager, err = managedfields.NewDefaultFieldManager(managedfields.NewDeducedTypeConverter(),
			scheme.Scheme, scheme.Scheme, scheme.Scheme, r.GVK(), r.GVR.GroupVersion(), e.subresource, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("field manager: %w", err)
	}
	return &handlers.RequestScope{
		Namer:                    handlers.ContextBasedNaming{Namer: runtime.Namer(meta.NewAccessor()), ClusterScoped: !r.Namespaced},
		Serializer:               serializer,
		ParameterCodec:           scheme.ParameterCodec,
		Creater:                  scheme.Scheme, //nolint:misspell // upstream's word
		Convertor:                kinds.NewFieldConvertor(scheme.Scheme, r),
		Defaulter:                scheme.Scheme,
		Typer:                    scheme.Scheme,
		UnsafeConvertor:          runtime.UnsafeObjectConvertor(scheme.Scheme),
		EquivalentResourceMapper: runtime.NewEquivalentResourceRegistry(),
		TableConvertor:           e,
		FieldManager:             fieldManager,
		Resource:                 r.GVR,
		Kind:                     r.GVK(),
		Subresource:              e.subresource,
		MetaGroupVersion:         metav1.SchemeGroupVersion,
		HubGroupVersion:          r.GVR.GroupVersion(),
		MaxRequestBodyBytes:      maxBytes,
	}, nil
}

// ServeHTTP turns panics into errors, parses the request and authenticates its caller.
func (rs *routes) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			panic(p)
		default:
			rs.server.log.Error("panic in a request", zap.String("path", req.URL.Path), zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			respond.Error(w, req, apierrors.NewInternalError(fmt.Errorf("panic: %v", p)))
		}
	}()
	info, err := rs.infoFactory.NewRequestInfo(req)
	if err != nil {
		respond.Error(w, req, apierrors.NewBadRequest(err.Error()))
		return
	}
	if !info.IsResourceRequest && isHealthPath(info.Path) {
		rs.serveNonResource(w, req)
		return
	}
	ctx := request.WithRequestInfo(req.Context(), info)
	ctx = request.WithReceivedTimestamp(ctx, time.Now())
	ctx = audit.WithAuditContext(ctx) // the patch handler needs one, though nothing is audited here
	who, err := rs.server.gate.Authenticate(req)
	if who.Kind == caller.Kubelet || who.Kind == caller.Socket { // administrators page through output, and type commands into containers
		rs.dispatch(w, req.WithContext(caller.With(ctx, who)), info, who)
		return
	}
	slow := limit.NewWriter(w)
	defer func() { rs.server.metrics.countRequest(who.Kind, slow.Status()) }()
	if err != nil {
		respond.Error(slow, req, err)
		return
	}
	rs.serveUntrusted(slow, req.WithContext(caller.With(ctx, who)), info, who)
}

// serveUntrusted answers a program that connected over TLS, within its limits and permissions.
func (rs *routes) serveUntrusted(w *limit.Writer, req *http.Request, info *request.RequestInfo, who caller.Caller) {
	req.Body = limit.NewReader(req.Body, w)
	watching := info.Verb == "watch"
	if watching && !who.Trusted {
		watched, leave := rs.server.openWatches.Register(req.Context()) // before authorization, so that no change of roles is missed in between
		defer leave()
		req = req.WithContext(watched)
	}
	if !rs.server.gate.Authorize(w, req, who) {
		return
	}
	if !who.Trusted { // a stock kubelet watches each ConfigMap and Secret of its pods
		leave, err := rs.server.limits.AdmitRequest(who, watching)
		if err != nil {
			respond.Error(w, req, err)
			return
		}
		defer leave()
	}
	if watching {
		open := rs.server.metrics.watches.WithLabelValues(string(who.Kind))
		open.Inc()
		defer open.Dec()
	}
	rs.dispatch(w, req, info, who)
}

// dispatch selects the handler after all checks of the request.
func (rs *routes) dispatch(w http.ResponseWriter, req *http.Request, info *request.RequestInfo, who caller.Caller) {
	switch {
	case !info.IsResourceRequest:
		rs.serveNonResource(w, req)
	case !who.Trusted:
		rs.untrustedHandler(info)(w, req)
	case rs.server.kubeletProxy.Serves(info, req):
		rs.server.kubeletProxy.Serve(w, req)
	case podproxy.IsReview(info):
		rs.server.kubeletProxy.WithReview(rs.server.readBody, rs.trustedHandler(info))(w, req)
	default:
		rs.trustedHandler(info)(w, req)
	}
}

// patchTypes returns the patch types applied here. Server-side apply is not among them: it needs all schemas in memory.
func patchTypes() []string {
	return []string{string(types.JSONPatchType), string(types.MergePatchType), string(types.StrategicMergePatchType)}
}

// trustedHandler selects the handler: local, or the cloud.
func (rs *routes) trustedHandler(info *request.RequestInfo) http.HandlerFunc {
	gvr := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	rt := rs.nodeRoutes[gvr][info.Subresource]
	watching := info.Verb == "watch"
	switch {
	case watching && gvr == csrResource() && info.Subresource == "":
		return newCertificates(rs.server).serveWatch
	case rt == nil && watching:
		return func(w http.ResponseWriter, req *http.Request) {
			respond.Error(w, req, apierrors.NewMethodNotSupported(gvr.GroupResource(), "watch"))
		}
	case info.Verb == "create" && gvr.Group == "" && info.Resource == "serviceaccounts" && info.Subresource == "token":
		return rs.server.serveTokenRequest
	case info.Verb == "create" && auth.IsReview(info):
		return rs.server.serveReview
	case rt == nil, info.Namespace != "" && !rt.endpoint.resource.Namespaced, len(info.Parts) > 3:
		return rs.server.forwardToCloud
	}
	if named := info.Name != ""; (info.Verb == "create" && named && info.Subresource == "") ||
		(!named && (info.Verb == "update" || info.Verb == "patch")) {
		return func(w http.ResponseWriter, req *http.Request) {
			respond.Error(w, req, apierrors.NewMethodNotSupported(gvr.GroupResource(), info.Verb))
		}
	}
	e, scope := rt.endpoint, rt.scope
	write := info.Verb
	if info.Subresource != "" {
		write += "/" + info.Subresource
	}
	switch {
	case info.Verb == "get":
		return handlers.GetResource(e, scope)
	case info.Verb == "list" || watching:
		return handlers.ListResource(e, e, scope, watching, minWatchTime)
	case write == "delete" && e.isLocalOnly(e.resource.ObjectKey(info.Namespace, info.Name)):
		return handlers.DeleteResource(e, true, scope, nil)
	case !e.resource.WritesLocally(write):
		return rs.server.forwardToCloud
	case info.Verb == "create":
		return handlers.CreateResource(e, scope, nil)
	case info.Verb == "update":
		return handlers.UpdateResource(e, scope, nil)
	case info.Verb == "patch":
		return handlers.PatchResource(e, scope, nil, patchTypes())
	default:
		return handlers.DeleteResource(e, true, scope, nil)
	}
}

// isHealthPath reports whether a path shows only that the server runs.
func isHealthPath(path string) bool {
	switch strings.TrimRight(path, "/") {
	case "/livez", "/readyz", "/healthz":
		return true
	}
	return false
}

// serveNonResource serves paths that are not resources.
func (rs *routes) serveNonResource(w http.ResponseWriter, req *http.Request) {
	switch path := strings.TrimRight(req.URL.Path, "/"); path {
	case "/livez", "/readyz", "/healthz":
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok"))
	case "/frond/store":
		if req.TLS != nil { // it shows Secrets' names and more of the gateway's state than a TLS client needs
			respond.Error(w, req, apierrors.NewForbidden(schema.GroupResource{}, "", fmt.Errorf("%s is for the unix socket", path)))
			return
		}
		rs.server.showStore(w)
	default:
		if req.TLS == nil && rs.server.cfg.Stopper != nil && strings.HasPrefix(path, restart.Path) {
			rs.server.servePodRestart(w, req)
			return
		}
		if !issuer.Serve(rs.server.store, w, req, path) && !rs.server.catalog.Serve(w, req, path) {
			rs.discovery.ServeDocument(w, req, path)
		}
	}
}

// StoreView is the answer of GET /frond/store: the objects that the gateway holds, without their contents.
type StoreView struct {
	Epoch    string       `json:"epoch"`
	Cursor   wire.Cursor  `json:"cursor"`
	Revision uint64       `json:"revision"`
	Objects  []ObjectView `json:"objects"`
}

// ObjectView is one object of a StoreView.
type ObjectView struct {
	Group     string `json:"group"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	Version   string `json:"version,omitempty"`
	Sequence  uint64 `json:"sequence,omitempty"`
	Revision  uint64 `json:"revision"`
	Bytes     int    `json:"bytes"`
}

func (s *Server) showStore(w http.ResponseWriter) {
	entries, revision := s.store.All()
	cursor := s.store.Cursor()
	view := StoreView{Epoch: cursor.StoreEpoch, Cursor: cursor, Revision: revision, Objects: make([]ObjectView, 0, len(entries))}
	for _, e := range entries {
		view.Objects = append(view.Objects, ObjectView{
			Group: e.Key.Group, Resource: e.Key.Resource, Namespace: e.Key.Namespace, Name: e.Key.Name,
			UID: e.UID, Version: e.Version, Sequence: e.Sequence, Revision: e.Revision, Bytes: len(e.Object),
		})
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	_ = json.NewEncoder(w).Encode(view) // the client has gone away
}
