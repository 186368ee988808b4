package kubecalls

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/identity"
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
	cut       CutEndpoints
	// refused counts the refused requests, by the code of the answer; logLimit limits their log lines.
	refused  *prometheus.CounterVec
	logLimit rate.Sometimes
	log      *zap.Logger
}

// refusalLogInterval is the minimum time between two log lines about refused requests, of all nodes: a metric counts each.
const refusalLogInterval = time.Second

// New creates a Server for the apiserver of cfg. classic says that nodes are impersonated by the classic verb.
func New(cfg *rest.Config, classic bool, guard *NamespaceGuard, cut CutEndpoints, metrics prometheus.Registerer, log *zap.Logger) (*Server, error) {
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
	return &Server{
		base: base, client: client, tokenClient: bare, ownClient: own, guard: guard, cut: cut, csrs: &csrLimiter{limiters: map[string]*rate.Limiter{}}, logLimit: rate.Sometimes{Interval: refusalLogInterval}, log: log,
		refused: promauto.With(metrics).NewCounterVec(prometheus.CounterOpts{
			Namespace: "frond", Subsystem: "kube", Name: "refused_total", Help: "Kubernetes requests of nodes that were not granted, by the code of the answer.",
		}, []string{"code"}),
	}, nil
}

// Handle is the call.Handler of subject.VerbKube.
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
	if targetsEndpoints(req) {
		return k.performCut(ctx, node, req)
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

// registersNode reports whether a request creates a Node and comes from a node, not from a pod there.
func registersNode(req wire.KubeRequest) bool {
	return req.Token == "" && req.Method == http.MethodPost && req.Path == "/api/v1/nodes"
}

// registerNode creates the Node that a gateway requests, with the labels of a gateway, as package reports does for a
// reported Node: Kubernetes checks the request as the node in a dry run, and cloudcore creates what was admitted.
func (k *Server) registerNode(ctx context.Context, node string, req wire.KubeRequest) (wire.KubeReply, error) {
	query, err := url.ParseQuery(req.Query)
	if err != nil {
		return denialReply(apierrors.NewBadRequest("query: " + err.Error())), nil //nolint:nilerr // it is the gateway's answer
	}
	wanted := query.Get("dryRun")
	query.Set("dryRun", metav1.DryRunAll)
	dry := req
	dry.Query = query.Encode()
	reply, err := k.performRequest(ctx, k.client, node, dry)
	if err != nil || reply.Code != http.StatusCreated || wanted != "" {
		return reply, err
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(req.Body, nil, nil)
	if err != nil {
		return denialReply(apierrors.NewBadRequest(err.Error())), nil
	}
	registered, ok := object.(*corev1.Node)
	if !ok || registered.Name != node {
		return denialReply(apierrors.NewBadRequest(fmt.Sprintf("not the Node %s", node))), nil
	}
	registered.Labels = identity.WithGatewayLabels(registered.Labels)
	req.ContentType = runtime.ContentTypeJSON
	if req.Body, err = json.Marshal(registered); err != nil {
		return wire.KubeReply{}, fmt.Errorf("encode the Node: %w", err)
	}
	return k.performRequest(ctx, k.ownClient, node, req)
}

// performRequest makes a request with a client and reads its answer, of maxReply bytes at most.
func (k *Server) performRequest(ctx context.Context, client *http.Client, node string, req wire.KubeRequest) (wire.KubeReply, error) {
	resp, err := k.sendRequestWith(ctx, client, node, req)
	if err != nil {
		return wire.KubeReply{Error: "ask the apiserver: " + err.Error()}, nil
	}
	defer func() { _ = resp.Body.Close() }() // it is read to its end or abandoned
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
	switch {
	case err != nil:
		return wire.KubeReply{Error: "read the apiserver's answer: " + err.Error()}, nil
	case len(body) > maxReply:
		return wire.KubeReply{Error: fmt.Sprintf("the answer is longer than %d bytes; ask for less, with limit or a selector", maxReply)}, nil
	}
	if _, most := replyLimits(req.MaxBytes); len(body) > most {
		return denialReply(tooLargeError("an answer", len(body), req.MaxBytes)), nil
	}
	return wire.KubeReply{Code: resp.StatusCode, ContentType: resp.Header.Get("Content-Type"), Body: body}, nil
}

// performCut makes a request about endpoints, and cuts what the apiserver answers as what the node is sent.
func (k *Server) performCut(ctx context.Context, node string, req wire.KubeRequest) (wire.KubeReply, error) {
	if req.Method == http.MethodPut { // what was read is a share, and would replace the whole for all nodes
		return denialReply(apierrors.NewForbidden(schema.GroupResource{Resource: "endpoints"}, "", errors.New("endpoints that were read on a gateway may be a share of the whole; change them by a patch"))), nil
	}
	req.Accept = runtime.ContentTypeJSON
	reply, err := k.performRequest(ctx, k.clientFor(req), node, req)
	if err != nil || reply.Code < http.StatusOK || reply.Code >= http.StatusMultipleChoices {
		return reply, err
	}
	if kind, _, err := mime.ParseMediaType(reply.ContentType); err != nil || kind != runtime.ContentTypeJSON {
		return wire.KubeReply{Error: fmt.Sprintf("the apiserver's answer about endpoints is %.100q, not JSON", reply.ContentType)}, nil //nolint:nilerr // it is the gateway's answer
	}
	if reply.Body, err = k.cut.cutBody(node, reply.Body); err != nil {
		return denialReply(apierrors.NewServiceUnavailable("endpoints: " + err.Error())), nil //nolint:nilerr // it is the gateway's answer
	}
	return reply, nil
}
