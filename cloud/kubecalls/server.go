package kubecalls

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/reports"
	"github.com/frond-edge/frond/streams/call"
)

// maxReply bounds the reply to one call; the apiserver's own limit of an object is below it.
const maxReply = 3 << 20

// Server performs a node's Kubernetes requests as that node, so that the Node authorizer and NodeRestriction check
// them, or with the token of the request, so that its bearer's rights apply. cloudcore's own rights are used for one
// purpose: to create a Node that was checked this way.
type Server struct {
	base   *url.URL
	client *http.Client
	// tokenClient has no credentials of its own: a client certificate would take precedence over the token.
	tokenClient *http.Client
	// ownClient has cloudcore's rights, for requests that were checked as the node before.
	ownClient *http.Client
	csrs      *csrLimiter
	guard     *NamespaceGuard
	// refused counts the refused requests, by the code of the answer; logLimit limits their log lines.
	refused  *prometheus.CounterVec
	logLimit rate.Sometimes
	log      *zap.Logger
}

// refusalLogInterval is the minimum time between two log lines about refused requests, of all nodes: a metric counts each.
const refusalLogInterval = time.Second

// New creates a Server for the apiserver of cfg. classic says that nodes are impersonated by the classic verb.
func New(cfg *rest.Config, classic bool, guard *NamespaceGuard, metrics prometheus.Registerer, log *zap.Logger) (*Server, error) {
	client, err := rest.HTTPClientFor(reports.Impersonating(cfg, classic))
	if err != nil {
		return nil, fmt.Errorf("calls for nodes: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("calls for nodes: %w", err)
	}
	bare, err := rest.HTTPClientFor(rest.AnonymousClientConfig(cfg))
	if err != nil {
		return nil, fmt.Errorf("calls for pods: %w", err)
	}
	own, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("calls for nodes: %w", err)
	}
	// An answer is forwarded unchanged: following a redirect could send the request, with its credentials, elsewhere.
	asIs := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	client.CheckRedirect, bare.CheckRedirect, own.CheckRedirect = asIs, asIs, asIs
	k := &Server{
		base: base, client: client, tokenClient: bare, ownClient: own, guard: guard, csrs: &csrLimiter{limiters: map[string]*rate.Limiter{}}, logLimit: rate.Sometimes{Interval: refusalLogInterval}, log: log,
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "frond", Subsystem: "kube", Name: "refused_total", Help: "Kubernetes requests of nodes that were not granted, by the code of the answer.",
		}, []string{"code"}),
	}
	metrics.MustRegister(k.refused)
	return k, nil
}

// Handle is the streams.CallHandler of streams.VerbKube.
func (k *Server) Handle(ctx context.Context, node string, request []byte) (any, error) {
	answer, err := k.handleRequest(ctx, node, request)
	reply, ok := answer.(wire.KubeReply)
	if !ok {
		return answer, err
	}
	switch reply.Code {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestEntityTooLarge, http.StatusTooManyRequests:
		k.refused.WithLabelValues(strconv.Itoa(reply.Code)).Inc()
		k.logLimit.Do(func() {
			k.log.Info("request of a node not granted", zap.String("node", node), zap.Int("code", reply.Code), zap.ByteString("answer", reply.Body[:min(len(reply.Body), 300)]))
		})
	}
	return answer, err
}

func (k *Server) handleRequest(ctx context.Context, node string, request []byte) (any, error) {
	var req wire.KubeRequest
	if err := call.DecodeRequest(request, &req); err != nil {
		return nil, err
	}
	if err := validateCall(req); err != nil {
		return denialReply(err), nil // not an invalid message: any program at the node may send it
	}
	req, err := k.guard.restrictRequest(node, req)
	if err != nil {
		return refusalReply(err), nil
	}
	if req.Token == "" { // otherwise the sender is not the node
		if err := refuseNodeWrite(req); err != nil {
			k.log.Warn("write of a Node refused", zap.String("node", node), zap.Error(err))
			return denialReply(err), nil
		}
		if err := k.csrs.admitRequest(node, req); err != nil {
			k.log.Warn("request for a certificate refused", zap.String("node", node), zap.Error(err))
			return denialReply(err), nil
		}
	}
	if registersNode(req) {
		return k.registerNode(ctx, node, req)
	}
	return k.performRequest(ctx, k.clientFor(req), node, req)
}

// clientFor returns the client that acts as the node, or as the bearer of the request's token.
func (k *Server) clientFor(req wire.KubeRequest) *http.Client {
	if req.Token != "" {
		return k.tokenClient
	}
	return k.client
}

// sendRequest makes an admitted request; the caller closes the body of the answer.
func (k *Server) sendRequest(ctx context.Context, node string, req wire.KubeRequest) (*http.Response, error) {
	return k.sendRequestWith(ctx, k.clientFor(req), node, req)
}

// sendRequestWith is sendRequest with a client of the caller's choice.
func (k *Server) sendRequestWith(ctx context.Context, client *http.Client, node string, req wire.KubeRequest) (*http.Response, error) {
	target := *k.base
	target.Path, target.RawQuery = req.Path, req.Query
	out, err := http.NewRequestWithContext(reports.WithNode(ctx, node), req.Method, target.String(), bytes.NewReader(req.Body))
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{"Accept": req.Accept, "Content-Type": req.ContentType} {
		if value != "" {
			out.Header.Set(name, value)
		}
	}
	if req.Token != "" {
		out.Header.Set("Authorization", "Bearer "+req.Token)
	}
	return client.Do(out)
}

// validateCall refuses requests that a single request and reply cannot carry, and paths that are not in canonical form.
func validateCall(req wire.KubeRequest) error {
	switch req.Method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return fmt.Errorf("method %.20q is not for calls", req.Method)
	}
	if path.Clean(req.Path) != req.Path || !slices.ContainsFunc(callPaths(), func(p string) bool {
		return req.Path == p || strings.HasPrefix(req.Path, p+"/")
	}) {
		return fmt.Errorf("path %.200q is not a Kubernetes API path", req.Path)
	}
	query, err := url.ParseQuery(req.Query)
	if err != nil {
		return fmt.Errorf("query: %w", err)
	}
	for _, watch := range query["watch"] {
		if watch != "0" && watch != "false" { // an apiserver takes an empty value as true
			return errors.New("a watch does not fit in one call")
		}
	}
	if segments := strings.Split(req.Path, "/"); len(segments) > 3 && segments[1] == "api" && segments[3] == "watch" ||
		len(segments) > 4 && segments[1] == "apis" && segments[4] == "watch" {
		return errors.New("a watch does not fit in one call")
	}
	if stream := streamSubresource(req.Path); stream != "" {
		return fmt.Errorf("%s is a stream, not a call", stream)
	}
	return nil
}

// callPaths returns the path prefixes of a Kubernetes API and of its descriptions.
func callPaths() []string { return []string{"/api", "/apis", "/openapi/v3", "/version"} }

// streamSubresource returns the subresource of a path if it is one that carries a stream; the path after /proxy belongs to the target.
func streamSubresource(requested string) string {
	segments := strings.Split(strings.TrimPrefix(requested, "/"), "/")
	start := 3 // api, version, resource
	if segments[0] == "apis" {
		start = 4
	}
	if len(segments) > start && segments[start-1] == "namespaces" {
		start += 2
	}
	if len(segments) <= start+1 {
		return "" // a collection or an object
	}
	switch subresource := segments[start+1]; subresource {
	case "proxy", "exec", "attach", "portforward", "log":
		return subresource
	}
	return ""
}
