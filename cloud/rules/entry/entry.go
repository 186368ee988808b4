// Package entry serves KubeEdge's REST entry: callers reach services of gateways by the paths of Rules, through any cloudcore.
//
// A call is sent once, if the gateway is connected, and the service's answer is passed on as it is. Who may call what, Kubernetes decides, unless the entry is
// configured to be insecure. The caller's credentials stay here.
package entry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/frond-edge/frond/api/rulecall"
	"github.com/frond-edge/frond/api/rules"
	"github.com/frond-edge/frond/controllers/rules/resolve"
)

// VerbInvoke is the verb on a Rule that a caller needs.
const VerbInvoke = "invoke"

const (
	// retryAfter is in seconds. A gateway's link is tried again within less.
	retryAfter = "10"
	maxHeader  = 64 << 10
)

// Access decides who may call.
type Access interface {
	IdentifyUser(ctx context.Context, r *http.Request) (authenticationv1.UserInfo, error)
	AuthorizeUser(ctx context.Context, user authenticationv1.UserInfo, on authorizationv1.ResourceAttributes) error
	// StatusCode returns the HTTP status of an error of the two.
	StatusCode(err error) int
}

// Routes returns what callers can reach in a namespace. synced is false while that is not known.
type Routes func(namespace string) (all []resolve.Route, synced bool)

// Dial opens a stream to the part for services of a gateway. user is logged on both ends.
type Dial func(ctx context.Context, node, user string) (net.Conn, error)

// notSentError is an error before a service got the call.
type notSentError struct{ err error }

func (e notSentError) Error() string { return e.err.Error() }
func (e notSentError) Unwrap() error { return e.err }

// Handler is the entry.
type Handler struct {
	access   Access
	routes   Routes
	proxy    *httputil.ReverseProxy
	requests *prometheus.CounterVec
	log      *zap.Logger
}

// destination is where a request goes; it is in the request's context.
type destination struct {
	node, user, path string
	port             uint16
}

type destinationKey struct{}

// New returns the entry. access nil lets everybody call everything.
func New(access Access, routes Routes, dial Dial, registry prometheus.Registerer, log *zap.Logger) (*Handler, error) {
	h := &Handler{access: access, routes: routes, log: log, requests: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "frond", Subsystem: "rules", Name: "requests_total",
		Help: "Requests at the REST entry, by the status of the answer: a service's, or the entry's own.",
	}, []string{"code"})}
	h.proxy = &httputil.ReverseProxy{
		Rewrite:  rewrite,
		ErrorLog: zap.NewStdLog(zap.NewNop()),
		// A connection of its own for each call: on a used one a call is sent again when it breaks.
		Transport: &http.Transport{
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				to, ok := ctx.Value(destinationKey{}).(destination)
				if !ok {
					return nil, errors.New("a call without a destination")
				}
				conn, err := dial(ctx, to.node, to.user)
				if err != nil {
					return nil, notSentError{err}
				}
				return conn, nil
			},
		},
		ModifyResponse: func(r *http.Response) error {
			if why := r.Header.Get(rulecall.HeaderNotSent); why != "" {
				_ = r.Body.Close() // its text is the header's
				return notSentError{errors.New(why)}
			}
			return nil
		},
		ErrorHandler: answerError,
	}
	return h, registry.Register(h.requests)
}

// rewrite makes the request to the gateway.
func rewrite(p *httputil.ProxyRequest) {
	to, ok := p.In.Context().Value(destinationKey{}).(destination)
	if !ok {
		return // the dial fails
	}
	path, err := url.PathUnescape(to.path)
	if err != nil {
		return // it was parsed before
	}
	p.Out.URL = &url.URL{Scheme: "http", Host: "gateway", Path: path, RawPath: to.path, RawQuery: p.In.URL.RawQuery}
	p.Out.Host = "gateway"
	p.Out.Header.Del("Authorization") // a gateway could use it
	p.Out.Header.Del("Upgrade")
	p.Out.Header.Set(rulecall.HeaderPort, strconv.Itoa(int(to.port)))
}

// answerError answers a call without an answer of a service.
func answerError(w http.ResponseWriter, r *http.Request, err error) {
	_, notSent := errors.AsType[notSentError](err)
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case tooLarge:
		http.Error(w, fmt.Sprintf("the body has more than %d bytes", rulecall.MaxBody), http.StatusRequestEntityTooLarge)
	case notSent:
		w.Header().Set("Retry-After", retryAfter)
		http.Error(w, "not sent: "+err.Error(), http.StatusServiceUnavailable)
	case errors.Is(r.Context().Err(), context.DeadlineExceeded):
		http.Error(w, "the service did not answer in time; it may have got the call", http.StatusGatewayTimeout)
	default:
		http.Error(w, "the connection to the gateway broke; the service may have got the call: "+err.Error(), http.StatusBadGateway)
	}
}

// statusRecorder remembers the status of an answer.
type statusRecorder struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements http.ResponseWriter.
func (s *statusRecorder) WriteHeader(code int) {
	s.code = code
	s.ResponseWriter.WriteHeader(code)
}

// Unwrap lets http.ResponseController find the connection.
func (s *statusRecorder) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	recorder := &statusRecorder{ResponseWriter: w, code: http.StatusOK}
	defer func() { h.requests.WithLabelValues(strconv.Itoa(recorder.code)).Inc() }()
	ctx, cancel := context.WithTimeout(r.Context(), rulecall.Timeout)
	defer cancel()
	to, code, err := h.find(ctx, r)
	if err != nil {
		h.log.Info("call by a rule refused", zap.String("user", to.user), zap.Int("code", code), zap.Error(err))
		http.Error(recorder, err.Error(), code)
		return
	}
	if r.ContentLength > rulecall.MaxBody {
		answerError(recorder, r, &http.MaxBytesError{Limit: rulecall.MaxBody})
		return
	}
	r.Body = http.MaxBytesReader(recorder, r.Body, rulecall.MaxBody)
	h.proxy.ServeHTTP(recorder, r.WithContext(context.WithValue(ctx, destinationKey{}, to)))
}

// find returns where a request goes, or the status of its refusal.
func (h *Handler) find(ctx context.Context, r *http.Request) (to destination, code int, err error) {
	var user authenticationv1.UserInfo
	if h.access != nil {
		if user, err = h.access.IdentifyUser(ctx, r); err != nil {
			return to, h.access.StatusCode(err), err
		}
		to.user = user.Username
	}
	request, err := resolve.ParseRequest(r.URL.EscapedPath())
	if err != nil {
		return to, http.StatusBadRequest, err
	}
	if faults := validation.IsDNS1123Subdomain(request.Node); len(faults) > 0 {
		return to, http.StatusBadRequest, fmt.Errorf("%.80q is not the name of a Node", request.Node)
	}
	routes, synced := h.routes(request.Namespace)
	if !synced {
		return to, http.StatusServiceUnavailable, errors.New("the rules are not read yet")
	}
	route, path, found := resolve.Choose(routes, request)
	// Whoever may call nothing is not told what there is.
	if h.access != nil {
		err := h.access.AuthorizeUser(ctx, user, authorizationv1.ResourceAttributes{
			Verb: VerbInvoke, Group: rules.Group, Version: rules.Version, Resource: rules.RulesResource, Namespace: request.Namespace, Name: route.Rule,
		})
		if err != nil {
			return to, h.access.StatusCode(err), err
		}
	}
	if !found {
		return to, http.StatusNotFound, fmt.Errorf("no rule of the namespace %.80q takes this path", request.Namespace)
	}
	to.node, to.port, to.path = request.Node, route.Call.Port, path
	return to, 0, nil
}
