package kubecalls

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
)

// CutEndpoints returns the part of EndpointSlices or Endpoints that a node may be given. An error says that it is not known. It does not
// change the object, and must not block.
type CutEndpoints func(node string, o *unstructured.Unstructured) (client.Object, error)

// errEndpointsWatched refuses a watch that would go around the cut.
var errEndpointsWatched = errors.New("EndpointSlices and Endpoints are followed in the gateway's store: list and watch them at its local API")

// targetsEndpoints reports whether a request is about EndpointSlices or Endpoints.
func targetsEndpoints(req wire.KubeRequest) bool {
	of := parseTarget(req.Path).resource.GroupResource()
	return of == schema.GroupResource{Resource: "endpoints"} || of == schema.GroupResource{Group: discoveryv1.GroupName, Resource: "endpointslices"}
}

// performCut makes a request about endpoints, and cuts what the apiserver answers as what the node is sent.
func (k *Server) performCut(ctx context.Context, node string, req wire.KubeRequest) (wire.KubeReply, error) {
	req.Accept = runtime.ContentTypeJSON
	reply, err := k.performRequest(ctx, k.clientFor(req), node, req)
	if err != nil || reply.Code < http.StatusOK || reply.Code >= http.StatusMultipleChoices {
		return reply, err
	}
	if kind, _, err := mime.ParseMediaType(reply.ContentType); err != nil || kind != runtime.ContentTypeJSON {
		return wire.KubeReply{Error: fmt.Sprintf("the apiserver's answer about endpoints is %.100q, not JSON", reply.ContentType)}, nil
	}
	if reply.Body, err = k.cutBody(node, reply.Body); err != nil {
		return denialReply(apierrors.NewServiceUnavailable("endpoints: " + err.Error())), nil
	}
	return reply, nil
}

// cutBody cuts an object, or each of a list. A Status is returned as it is.
func (k *Server) cutBody(node string, body []byte) ([]byte, error) {
	var content map[string]any
	if err := json.Unmarshal(body, &content); err != nil {
		return nil, err
	}
	answer := &unstructured.Unstructured{Object: content}
	switch answer.GetKind() {
	case "EndpointSlice", "Endpoints":
		part, err := k.cut(node, answer)
		if err != nil {
			return nil, err
		}
		return json.Marshal(part)
	case "EndpointSliceList", "EndpointsList":
	case "Status":
		return body, nil
	default:
		return nil, fmt.Errorf("unexpected kind %.50q", answer.GetKind())
	}
	items, _ := content["items"].([]any)
	for i, item := range items {
		fields, ok := item.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("an item is a %T", item)
		}
		o := &unstructured.Unstructured{Object: fields} // without its type, as in any list
		o.SetAPIVersion(answer.GetAPIVersion())
		o.SetKind(strings.TrimSuffix(answer.GetKind(), "List"))
		part, err := k.cut(node, o)
		if err != nil {
			return nil, err
		}
		items[i] = part
	}
	return json.Marshal(content)
}
