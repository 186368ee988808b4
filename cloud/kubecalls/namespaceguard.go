package kubecalls

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
)

// NamespaceGuard refuses the requests of gateways, and of the pods there, to protected namespaces.
type NamespaceGuard struct {
	protected controllers.ProtectedNamespaces
	// namespaced reports whether the objects of a resource are in namespaces; true for a resource that is not known.
	namespaced func(schema.GroupVersionResource) (bool, error)
	events     *WithheldEvents
}

// NewNamespaceGuard creates a guard that looks up the resources of the apiserver of cfg.
func NewNamespaceGuard(protected controllers.ProtectedNamespaces, cfg *rest.Config, events *WithheldEvents) (*NamespaceGuard, error) {
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("resources: %w", err)
	}
	mapper, err := apiutil.NewDynamicRESTMapper(cfg, client)
	if err != nil {
		return nil, fmt.Errorf("resources: %w", err)
	}
	namespaced := func(resource schema.GroupVersionResource) (bool, error) {
		kind, err := mapper.KindFor(resource)
		if meta.IsNoMatchError(err) {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("look up %s: %w", resource, err)
		}
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return false, fmt.Errorf("look up %s: %w", kind, err)
		}
		return mapping.Scope.Name() == meta.RESTScopeNameNamespace, nil
	}
	return &NamespaceGuard{protected: protected, namespaced: namespaced, events: events}, nil
}

// restrictRequest returns the request in the form in which it may be made. A request in a protected namespace is
// refused, and one for the objects of all namespaces leaves out those of the protected ones. The error is an API status
// for the gateway, or says that the apiserver could not be asked.
func (g *NamespaceGuard) restrictRequest(node string, req wire.KubeRequest) (wire.KubeRequest, error) {
	target := parseTarget(req.Path)
	switch {
	case g.protected.Contains(target.namespace):
		g.events.reportRequested(node, target.namespace, req.Method, req.Path)
		return req, apierrors.NewForbidden(target.resource.GroupResource(), target.name,
			fmt.Errorf("namespace %s is protected: none of its objects is given to a gateway", target.namespace))
	case req.Method != http.MethodGet || target.resource.Resource == "" || target.name != "" || target.namespace != "":
		return req, nil
	}
	namespaced, err := g.namespaced(target.resource)
	if err != nil || !namespaced {
		return req, err
	}
	return g.narrowSelector(req)
}

// narrowSelector adds a field selector to a list or watch over all namespaces that excludes the protected ones.
func (g *NamespaceGuard) narrowSelector(req wire.KubeRequest) (wire.KubeRequest, error) {
	const parameter = "fieldSelector"
	query, err := url.ParseQuery(req.Query)
	if err != nil {
		return req, apierrors.NewBadRequest("query: " + err.Error())
	}
	if len(query[parameter]) > 1 {
		return req, apierrors.NewBadRequest("more than one fieldSelector")
	}
	selector, err := fields.ParseSelector(query.Get(parameter))
	if err != nil {
		return req, apierrors.NewBadRequest(parameter + ": " + err.Error())
	}
	var all []fields.Selector
	if !selector.Empty() {
		all = append(all, selector)
	}
	for _, namespace := range g.protected.Names() {
		all = append(all, fields.OneTermNotEqualSelector("metadata.namespace", namespace))
	}
	query.Set(parameter, fields.AndSelectors(all...).String())
	req.Query = query.Encode()
	return req, nil
}

// requestTarget is the target of a Kubernetes request path: a resource, and the object or namespace if the path
// contains one. It is zero for paths outside the API's objects.
type requestTarget struct {
	resource        schema.GroupVersionResource
	namespace, name string
}

// parseTarget parses a clean path: /api/VERSION/… or /apis/GROUP/VERSION/…, with or without namespaces/NAMESPACE before
// the resource. A Namespace object itself is in no namespace.
func parseTarget(path string) (t requestTarget) {
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	switch {
	case len(segments) > 2 && segments[0] == "api":
		t.resource.Version, segments = segments[1], segments[2:]
	case len(segments) > 3 && segments[0] == "apis":
		t.resource.Group, t.resource.Version, segments = segments[1], segments[2], segments[3:]
	default:
		return t
	}
	if segments[0] == "namespaces" && len(segments) > 2 {
		t.namespace, segments = segments[1], segments[2:]
	}
	t.resource.Resource = segments[0]
	if len(segments) > 1 {
		t.name = segments[1]
	}
	return t
}
