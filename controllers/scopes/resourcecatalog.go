package scopes

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"

	"github.com/frond-edge/frond/api/wire"
)

// resourceCatalog looks up which resources the API serves, and how many objects there are. Its answers are cached for a time.
type resourceCatalog struct {
	discovery  discovery.DiscoveryInterfaceWithContext
	objects    metadata.Interface
	maxObjects int
	ttl        time.Duration

	mu      sync.Mutex
	entries map[wire.Scope]catalogEntry // guarded by mu
}

type catalogEntry struct {
	kind    wire.ScopeKind
	reason  wire.ScopeReason
	message string
	until   time.Time
}

// lookupKind returns the kind of a scope, or why it cannot be synced.
func (c *resourceCatalog) lookupKind(ctx context.Context, scope wire.Scope) (wire.ScopeKind, wire.ScopeReason, string) {
	now := time.Now()
	c.mu.Lock()
	p, ok := c.entries[scope]
	c.mu.Unlock()
	if ok && now.Before(p.until) {
		return p.kind, p.reason, p.message
	}
	p = catalogEntry{kind: wire.ScopeKind{Scope: scope}, until: now.Add(c.ttl)}
	if p.kind, p.reason, p.message = c.findKind(ctx, scope); p.reason == "" {
		p.reason, p.message = c.checkSize(ctx, scope)
	}
	if p.reason != wire.ScopeUnjudged {
		c.mu.Lock()
		if len(c.entries) >= maxCached {
			clear(c.entries)
		}
		c.entries[scope] = p
		c.mu.Unlock()
	}
	return p.kind, p.reason, p.message
}

func (c *resourceCatalog) findKind(ctx context.Context, scope wire.Scope) (wire.ScopeKind, wire.ScopeReason, string) {
	kind := wire.ScopeKind{Scope: scope}
	if scope.Resource == "events" && (scope.Group == "" || scope.Group == "events.k8s.io") || scope.Resource == "leases" && scope.Group == "coordination.k8s.io" {
		return kind, wire.ScopeUnsuitable, scope.Resource + " are not sent to nodes: they change too often"
	}
	versions, err := c.groupVersions(ctx, scope.Group)
	if err != nil {
		return kind, wire.ScopeUnjudged, "the API could not be asked for its groups: " + err.Error()
	}
	for _, version := range versions {
		resource, err := c.findResource(ctx, schema.GroupVersion{Group: scope.Group, Version: version}, scope.Resource)
		switch {
		case err != nil:
			return kind, wire.ScopeUnjudged, "the API could not be asked for its resources: " + err.Error()
		case resource == nil:
			continue
		case version != scope.Version:
			return kind, wire.ScopeNotServed, fmt.Sprintf("nodes get %s in version %s only, which the API prefers", scope.Resource, version)
		case scope.Namespace != "" && !resource.Namespaced:
			return kind, wire.ScopeNotServed, scope.Resource + " are in no namespace"
		case !slices.Contains(resource.Verbs, "list") || !slices.Contains(resource.Verbs, "watch"):
			return kind, wire.ScopeUnsuitable, scope.Resource + " cannot be listed and watched"
		}
		kind.Kind, kind.Namespaced = resource.Kind, resource.Namespaced
		return kind, "", ""
	}
	return kind, wire.ScopeNotServed, "the API has no " + scope.String()
}

// groupVersions returns the versions of a group, the preferred one first; none for a group that does not exist.
func (c *resourceCatalog) groupVersions(ctx context.Context, group string) ([]string, error) {
	if group == "" {
		return []string{"v1"}, nil
	}
	groups, err := c.discovery.ServerGroupsWithContext(ctx)
	if err != nil {
		return nil, err
	}
	for _, g := range groups.Groups {
		if g.Name != group {
			continue
		}
		versions := []string{g.PreferredVersion.Version}
		for _, v := range g.Versions {
			if v.Version != g.PreferredVersion.Version {
				versions = append(versions, v.Version)
			}
		}
		return versions, nil
	}
	return nil, nil
}

// findResource returns the resource, or nil if the API does not serve it in that version.
func (c *resourceCatalog) findResource(ctx context.Context, version schema.GroupVersion, name string) (*metav1.APIResource, error) {
	list, err := c.discovery.ServerResourcesForGroupVersionWithContext(ctx, version.String())
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for i := range list.APIResources {
		if list.APIResources[i].Name == name {
			return &list.APIResources[i], nil
		}
	}
	return nil, nil
}

// checkSize lists one object with cloudcore's own rights: the answer contains how many more there are, and shows
// whether cloudcore may list them.
func (c *resourceCatalog) checkSize(ctx context.Context, scope wire.Scope) (wire.ScopeReason, string) {
	resource := schema.GroupVersionResource{Group: scope.Group, Version: scope.Version, Resource: scope.Resource}
	list, err := c.objects.Resource(resource).Namespace(scope.Namespace).List(ctx, metav1.ListOptions{Limit: 1})
	switch {
	case apierrors.IsForbidden(err):
		return wire.ScopeForbidden, "cloudcore itself may not list " + scope.String() + ": grant it list and watch"
	case apierrors.IsNotFound(err):
		return wire.ScopeNotServed, "the API has no " + scope.String()
	case err != nil:
		return wire.ScopeUnjudged, "the API could not be asked for " + scope.String() + ": " + err.Error()
	}
	n := len(list.Items)
	if more := list.GetRemainingItemCount(); more != nil {
		n += int(*more)
	}
	if n > c.maxObjects {
		return wire.ScopeTooLarge, fmt.Sprintf("%s holds %d objects, a scope at most %d: ask for one namespace", scope.String(), n, c.maxObjects)
	}
	return "", ""
}
