package cloud

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/kubeversion"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/evictions"
	"github.com/frond-edge/frond/controllers/reports"
	"github.com/frond-edge/frond/internal/lifecycle"
)

// protectedNamespaces returns the namespaces whose objects are not published to gateways: Frond's own, and those of the configuration.
func (c *Cloud) protectedNamespaces() controllers.ProtectedNamespaces {
	return controllers.ProtectNamespaces(append([]string{identity.Namespace}, c.cfg.ProtectedNamespaces...)...)
}

// newEvictor creates the part that deletes pods of protected namespaces from gateways. It deletes as the gateway that
// the pod is bound to.
func (c *Cloud) newEvictor(objects cache.Cache, members *Members, alarms *eventRecorder) (lifecycle.Part, error) {
	nodes, err := kubernetes.NewForConfig(reports.Impersonating(c.rest, c.cfg.Impersonation == kubeversion.Classic))
	if err != nil {
		return lifecycle.Part{}, fmt.Errorf("evictions: %w", err)
	}
	remove := func(ctx context.Context, pod *corev1.Pod) error {
		options := metav1.NewDeleteOptions(0)
		options.Preconditions = metav1.NewUIDPreconditions(string(pod.UID))
		return nodes.CoreV1().Pods(pod.Namespace).Delete(reports.WithNode(ctx, pod.Spec.NodeName), pod.Name, *options)
	}
	evictor := evictions.New(c.protectedNamespaces(), objects, members.Owns, remove, alarms.warnNode, c.metrics, c.log.Named("evictions"))
	return lifecycle.Part{Name: "evictions", Start: evictor.Start}, nil
}

const (
	// reasonWithheld is the reason of the Event on a Node whose gateway was refused an object of a protected namespace.
	reasonWithheld = "ProtectedObjectWithheld"
	// withheldInterval is the minimum time between two such events about one node and namespace: a program may repeat
	// its request many times.
	withheldInterval = 10 * time.Minute
	// withheldMaxEntries bounds the memory of the events that were written.
	withheldMaxEntries = 4096
)

// withheldEvents tells operators which gateways needed or requested an object in a protected namespace.
type withheldEvents struct {
	warn func(node, reason, message string)

	mu           sync.Mutex
	lastReported map[string]time.Time // by node and namespace; guarded by mu
}

func newWithheldEvents(warn func(node, reason, message string)) *withheldEvents {
	return &withheldEvents{warn: warn, lastReported: map[string]time.Time{}}
}

// reportNeeded reports an object that the node needs (desired.Config.OnWithheld).
func (w *withheldEvents) reportNeeded(node string, object, referrer wire.Key) {
	why := "it is bound to this gateway"
	if referrer != object {
		why = referrer.Human() + " refers to it"
	}
	w.reportOnce(node, object.Namespace, fmt.Sprintf("%s is not given to this gateway: namespace %s is protected (%s). "+
		"Remove the reference, or move the object to another namespace.", object.Human(), object.Namespace, why))
}

// reportRequested reports a Kubernetes request of a gateway that was refused.
func (w *withheldEvents) reportRequested(node, namespace, method, path string) {
	w.reportOnce(node, namespace, fmt.Sprintf("%s %.200s was refused: namespace %s is protected, none of its objects is given to a gateway.", method, path, namespace))
}

func (w *withheldEvents) reportOnce(node, namespace, message string) {
	now, key := time.Now(), node+"/"+namespace
	w.mu.Lock()
	told, ok := w.lastReported[key]
	recent := ok && now.Sub(told) < withheldInterval
	if !recent {
		if len(w.lastReported) >= withheldMaxEntries {
			clear(w.lastReported)
		}
		w.lastReported[key] = now
	}
	w.mu.Unlock()
	if !recent {
		w.warn(node, reasonWithheld, message)
	}
}

// namespaceGuard refuses the requests of gateways, and of the pods there, to protected namespaces.
type namespaceGuard struct {
	protected controllers.ProtectedNamespaces
	// namespaced reports whether the objects of a resource are in namespaces; true for a resource that is not known.
	namespaced func(schema.GroupVersionResource) (bool, error)
	events     *withheldEvents
}

// newNamespaceGuard creates a guard that looks up the resources of the apiserver of cfg.
func newNamespaceGuard(protected controllers.ProtectedNamespaces, cfg *rest.Config, events *withheldEvents) (*namespaceGuard, error) {
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
	return &namespaceGuard{protected: protected, namespaced: namespaced, events: events}, nil
}

// restrictRequest returns the request in the form in which it may be made. A request in a protected namespace is
// refused, and one for the objects of all namespaces leaves out those of the protected ones. The error is an API status
// for the gateway, or says that the apiserver could not be asked.
func (g *namespaceGuard) restrictRequest(node string, req wire.KubeRequest) (wire.KubeRequest, error) {
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
func (g *namespaceGuard) narrowSelector(req wire.KubeRequest) (wire.KubeRequest, error) {
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
