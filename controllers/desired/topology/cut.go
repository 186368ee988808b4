package topology

import (
	"fmt"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/controllers/desired/payload"
)

// cut returns an object with the endpoints on the nodes that keep accepts; "" is the node of an endpoint that names none. The object itself
// and what its fields point to are not changed.
func cut(o client.Object, keep func(node string) bool) (client.Object, error) {
	switch o := o.(type) {
	case *discoveryv1.EndpointSlice:
		return cutSlice(o, func(e *discoveryv1.Endpoint) bool { return keep(nodeOf(e)) }), nil
	case *unstructured.Unstructured:
		return cutSubsets(o, keep)
	}
	return nil, fmt.Errorf("cannot cut a %T", o)
}

func nodeOf(e *discoveryv1.Endpoint) string { return ptr.Deref(e.NodeName, "") }

func cutSlice(o *discoveryv1.EndpointSlice, keep func(*discoveryv1.Endpoint) bool) *discoveryv1.EndpointSlice {
	share := *o
	share.Endpoints = []discoveryv1.Endpoint{}
	for i := range o.Endpoints {
		if keep(&o.Endpoints[i]) {
			share.Endpoints = append(share.Endpoints, o.Endpoints[i])
		}
	}
	return &share
}

// cutSubsets is cut for v1 Endpoints.
func cutSubsets(o *unstructured.Unstructured, keep func(node string) bool) (*unstructured.Unstructured, error) {
	subsets, _, err := unstructured.NestedFieldNoCopy(o.Object, "subsets")
	if err != nil {
		return nil, fmt.Errorf("endpoints: %w", err)
	}
	share := payload.ShallowCopy(o)
	delete(share.Object, "subsets")
	var kept []any
	list, _ := subsets.([]any)
	for _, subset := range list {
		fields, ok := subset.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("endpoints: a subset is a %T", subset)
		}
		rest, some := map[string]any{}, false
		for name, value := range fields {
			addresses, ok := value.([]any)
			if name != "addresses" && name != "notReadyAddresses" || !ok {
				rest[name] = value
				continue
			}
			if addresses = keptAddresses(addresses, keep); len(addresses) > 0 {
				rest[name], some = addresses, true
			}
		}
		if some {
			kept = append(kept, rest)
		}
	}
	if len(kept) > 0 {
		share.Object["subsets"] = kept
	}
	return share, nil
}

func keptAddresses(addresses []any, keep func(node string) bool) (kept []any) {
	for _, address := range addresses {
		if fields, ok := address.(map[string]any); ok {
			if node, _ := fields["nodeName"].(string); keep(node) {
				kept = append(kept, address)
			}
		}
	}
	return kept
}

// hasEndpoint reports whether an object has an endpoint on a node that match accepts.
func hasEndpoint(o client.Object, match func(node string) bool) bool {
	if slice, ok := o.(*discoveryv1.EndpointSlice); ok {
		return slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool { return match(nodeOf(&e)) })
	}
	share, err := cut(o, match)
	if u, ok := share.(*unstructured.Unstructured); ok && err == nil {
		return u.Object["subsets"] != nil
	}
	return err != nil // not readable: it may
}

// typedSlice returns an EndpointSlice in its type, and v1 Endpoints as they are.
func typedSlice(o client.Object) (client.Object, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok || u.GetKind() != "EndpointSlice" {
		return o, nil
	}
	slice := &discoveryv1.EndpointSlice{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, slice); err != nil {
		return nil, fmt.Errorf("endpoint slice: %w", err)
	}
	return slice, nil
}

// cutLocal returns the endpoints of a slice on a node. A kube-proxy drops what is sent to a Service with endpoints on other nodes only, and
// refuses what is sent to one without any. So the slice keeps one ready endpoint of another node, the first by node and address, unless the
// node itself has a ready one. hasOwn: the node has an endpoint in the slice.
func cutLocal(o *discoveryv1.EndpointSlice, node string) (share *discoveryv1.EndpointSlice, hasOwn bool) {
	var remote *discoveryv1.Endpoint
	ownReady := false
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		switch {
		case nodeOf(e) == node:
			hasOwn, ownReady = true, ownReady || usability(e) == ready
		case usability(e) != unusable && (remote == nil || precedes(e, remote)):
			remote = e
		}
	}
	return cutSlice(o, func(e *discoveryv1.Endpoint) bool { return nodeOf(e) == node || e == remote && !ownReady }), hasOwn
}

// The usability of an endpoint to a kube-proxy.
const (
	unusable = iota
	draining // used where none is ready
	ready
)

func usability(e *discoveryv1.Endpoint) int {
	switch isReady := ptr.Deref(e.Conditions.Ready, true); {
	case isReady:
		return ready
	case ptr.Deref(e.Conditions.Serving, isReady) && ptr.Deref(e.Conditions.Terminating, false):
		return draining
	}
	return unusable
}

// precedes orders endpoints: ready ones first.
func precedes(a, b *discoveryv1.Endpoint) bool {
	if x, y := usability(a), usability(b); x != y {
		return x > y
	}
	if x, y := nodeOf(a), nodeOf(b); x != y {
		return x < y
	}
	return slices.Compare(a.Addresses, b.Addresses) < 0
}
