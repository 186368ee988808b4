package kubecalls

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

// cutBody cuts an object, or each of a list. A Status is returned as it is.
func (cut CutEndpoints) cutBody(node string, body []byte) ([]byte, error) {
	var content map[string]any
	if err := json.Unmarshal(body, &content); err != nil {
		return nil, err
	}
	answer := &unstructured.Unstructured{Object: content}
	items, list := content["items"].([]any)
	switch {
	case answer.GetKind() == "Status":
		return body, nil
	case !list && strings.HasSuffix(answer.GetKind(), "List"):
		return body, nil // an empty one
	case !list:
		part, err := cut(node, answer)
		if err != nil {
			return nil, err
		}
		return json.Marshal(part)
	}
	for i, item := range items {
		fields, ok := item.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("an item is a %T", item)
		}
		o := &unstructured.Unstructured{Object: fields} // without its type, as in any list
		o.SetAPIVersion(answer.GetAPIVersion())
		o.SetKind(strings.TrimSuffix(answer.GetKind(), "List"))
		part, err := cut(node, o)
		if err != nil {
			return nil, err
		}
		items[i] = part
	}
	return json.Marshal(content)
}
