package kubecalls

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/wire"
)

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
