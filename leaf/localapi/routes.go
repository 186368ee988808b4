package localapi

import (
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/frond-edge/frond/leaf/localapi/admin"
	"github.com/frond-edge/frond/leaf/localapi/auth"
	"github.com/frond-edge/frond/leaf/localapi/caller"
	"github.com/frond-edge/frond/leaf/localapi/completeness"
	"github.com/frond-edge/frond/leaf/localapi/demand"
	"github.com/frond-edge/frond/leaf/localapi/discovery"
	"github.com/frond-edge/frond/leaf/localapi/forward"
	"github.com/frond-edge/frond/leaf/localapi/issuer"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/limit"
	"github.com/frond-edge/frond/leaf/localapi/podproxy"
	"github.com/frond-edge/frond/leaf/localapi/records"
	"github.com/frond-edge/frond/leaf/localapi/relay"
	"github.com/frond-edge/frond/leaf/localapi/respond"
	"github.com/frond-edge/frond/leaf/store"
)

// minWatchTime is when the server ends a watch without a timeout, plus a random time of up to the same length: as upstream.
const minWatchTime = 30 * time.Minute

// routes is the handler of all listeners: it checks a request's caller and limits, and selects what answers it.
type routes struct {
	log         *zap.Logger
	metrics     *serverMetrics
	gate        *auth.Gate
	openWatches *auth.Watches
	limits      *limit.Limits

	table     *routeTable
	forwarder *forward.RequestForwarder
	kubelet   *podproxy.Proxy
	csrs      *relay.CSRWatcher
	// For paths that are not resources.
	store     *store.Store
	admin     *admin.Handler
	discovery *discovery.Documents
	// For programs other than the node.
	scopes   *demand.Tracker
	complete *completeness.Evaluator
	relays   *relay.Relays
	online   func() bool
}

// ServeHTTP turns panics into errors, parses the request and authenticates its caller.
func (rs *routes) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			panic(p)
		default:
			rs.log.Error("panic in a request", zap.String("path", req.URL.Path), zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			respond.Error(w, req, apierrors.NewInternalError(fmt.Errorf("panic: %v", p)))
		}
	}()
	prefixes := request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	info, err := prefixes.NewRequestInfo(req)
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
	who, err := rs.gate.Authenticate(req)
	if who.Kind == caller.Kubelet || who.Kind == caller.Socket { // administrators page through output, and type commands into containers
		rs.dispatch(w, req.WithContext(caller.With(ctx, who)), info, who)
		return
	}
	slow := limit.NewWriter(w)
	defer func() { rs.metrics.countRequest(who.Kind, slow.Status()) }()
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
		watched, leave := rs.openWatches.Register(req.Context()) // before authorization, so that no change of roles is missed in between
		defer leave()
		req = req.WithContext(watched)
	}
	if !rs.gate.Authorize(w, req, who) {
		return
	}
	if !who.Trusted { // a stock kubelet watches each ConfigMap and Secret of its pods
		leave, err := rs.limits.AdmitRequest(who, watching)
		if err != nil {
			respond.Error(w, req, err)
			return
		}
		defer leave()
	}
	if watching {
		open := rs.metrics.watches.WithLabelValues(string(who.Kind))
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
	case rs.kubelet.Serves(info, req):
		rs.kubelet.Serve(w, req)
	case podproxy.IsReview(info):
		rs.kubelet.WithReview(rs.forwarder.ReadBody, rs.trustedHandler(info))(w, req)
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
	rt := rs.table.nodeRoutes[gvr][info.Subresource]
	watching := info.Verb == "watch"
	switch {
	case watching && gvr == rs.csrs.Resource.GVR && info.Subresource == "":
		return rs.watchCSR
	case rt == nil && watching:
		return func(w http.ResponseWriter, req *http.Request) {
			respond.Error(w, req, apierrors.NewMethodNotSupported(gvr.GroupResource(), "watch"))
		}
	case info.Verb == "create" && gvr.Group == "" && info.Resource == "serviceaccounts" && info.Subresource == "token":
		return rs.forwarder.ServeTokenRequest
	case info.Verb == "create" && auth.IsReview(info):
		return rs.forwarder.ServeReview
	case rt == nil, info.Namespace != "" && !rt.resource.Namespaced, len(info.Parts) > 3:
		return rs.forwarder.Forward
	}
	if named := info.Name != ""; (info.Verb == "create" && named && info.Subresource == "") ||
		(!named && (info.Verb == "update" || info.Verb == "patch")) {
		return func(w http.ResponseWriter, req *http.Request) {
			respond.Error(w, req, apierrors.NewMethodNotSupported(gvr.GroupResource(), info.Verb))
		}
	}
	r, w, scope := rt.reader, rt.writer, rt.scope
	write := info.Verb
	if info.Subresource != "" {
		write += "/" + info.Subresource
	}
	switch {
	case info.Verb == "get":
		return handlers.GetResource(r, scope)
	case (info.Verb == "list" || watching) && rt.resource.ByNeed:
		return rs.serveServices(info, rt)
	case info.Verb == "list" || watching:
		return handlers.ListResource(r, r, scope, watching, minWatchTime)
	case write == "delete" && w.IsLocalOnly(rt.resource.ObjectKey(info.Namespace, info.Name)):
		return handlers.DeleteResource(w, true, scope, nil)
	case !rt.resource.WritesLocally(write):
		return rs.forwarder.Forward
	case info.Verb == "create":
		return handlers.CreateResource(w, scope, nil)
	case info.Verb == "update":
		return handlers.UpdateResource(w, scope, nil)
	case info.Verb == "patch":
		return handlers.PatchResource(patcher{r, w}, scope, nil, patchTypes())
	default:
		return handlers.DeleteResource(w, true, scope, nil)
	}
}

// serveServices serves lists and watches of Services and EndpointSlices to callers that see what the node sees. A kubelet needs
// the Services of its pods' namespaces, and an administrator sees what the gateway holds. Any other program with the node's
// certificate, such as a kube-proxy, is given all of them as other programs are.
func (rs *routes) serveServices(info *request.RequestInfo, rt *route) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		if caller.Of(req.Context()).Kind != caller.Certificate || isKubelet(req) {
			handlers.ListResource(rt.reader, rt.reader, rt.scope, info.Verb == "watch", minWatchTime)(w, req)
			return
		}
		program, err := rs.table.programRoute(req.Context(), rt.resource.GVR)
		if err != nil {
			respond.Error(w, req, err)
			return
		}
		rs.serveList(w, req, info, program)
	}
}

// isKubelet reports whether a request with the node's certificate is a stock kubelet's. A kubelet that is not recognised is given
// all Services, which costs messages and does no harm.
func isKubelet(req *http.Request) bool { return strings.HasPrefix(req.UserAgent(), "kubelet/") }

// watchCSR serves a watch of a CertificateSigningRequest.
func (rs *routes) watchCSR(w http.ResponseWriter, req *http.Request) {
	scope, err := newScope(rs.csrs.Resource, "", rs.table.maxBytes)
	if err != nil {
		respond.Error(w, req, apierrors.NewInternalError(err))
		return
	}
	handlers.ListResource(nil, rs.csrs, scope, true, minWatchTime)(w, req)
}

// patcher is what a PATCH needs of a resource.
type patcher struct {
	rest.Getter
	rest.Updater
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
	path := strings.TrimRight(req.URL.Path, "/")
	if isHealthPath(path) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok"))
		return
	}
	if !rs.admin.Serve(w, req, path) && !issuer.Serve(rs.store, w, req, path) && !rs.table.catalog.Serve(w, req, path) {
		rs.discovery.ServeDocument(w, req, path)
	}
}

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
	always := rs.complete.IsAlwaysComplete(rt.resource, info.FieldSelector)
	switch {
	case always && !rt.resource.ByNeed, relayed && watching:
		serve(w, req)
		return
	case relayed:
		rs.forwardUnfollowedList(w, req, false, nil)
		return
	}
	scope, user := completeness.ScopeOf(rt.resource, info.Namespace), caller.Of(req.Context()).User.GetName()
	release, err := rs.scopes.Acquire(req.Context(), scope, user)
	if always { // as yet: the cloud learns what to send when it ceases to send all
		if err == nil {
			defer release()
		}
		serve(w, req)
		return
	}
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
