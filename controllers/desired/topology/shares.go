package topology

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/objectcache"
)

// ErrGroupUnknown is returned while it is not known which group a node is in. Changes follow when it is.
var ErrGroupUnknown = errors.New("the node's group is not known yet")

// ErrNoService is returned for endpoints of a Service that does not exist, or of which the cache has not heard yet: what a node has stays, and
// one that has nothing is given NoEndpoints. The event of the Service follows.
var ErrNoService = errors.New("the Service of the endpoints is not known")

// Groups knows the group of each node.
type Groups interface {
	// GroupOf returns a node's group, "" for none; known is false while that is not determined. It must not block.
	GroupOf(node string) (group string, known bool)
}

// Shares finds the shares of nodes. Its methods may be called concurrently, but for AfterEvent and GroupsChanged, which the caller serializes.
type Shares struct {
	objects *objectcache.Cache
	groups  Groups
	log     *zap.Logger
	// revision counts the changes of groups and zones: a Class is that of one revision.
	revision atomic.Uint64

	mu sync.Mutex
	// Guarded by mu.

	// last are the groups that GroupsChanged saw; nil: none were looked at.
	last map[string]lastGroup
	// faults are the annotations that were reported, by Service.
	faults map[wire.Key]string
}

type lastGroup struct {
	group string
	known bool
}

// NewShares creates Shares. groups nil: no node is in a group.
func NewShares(objects *objectcache.Cache, groups Groups, log *zap.Logger) *Shares {
	return &Shares{objects: objects, groups: groups, log: log, faults: map[wire.Key]string{}}
}

// Share is the part of an object that some nodes are given.
type Share struct {
	// Class is the same for all nodes with this share; "" if the share is the whole object.
	Class string
	cut   func(client.Object) (client.Object, error)
}

// Whole reports whether the share is the whole object.
func (s Share) Whole() bool { return s.Class == "" }

// Cut returns a copy of the object with the endpoints of the share only. What the copy's fields point to belongs to the cache.
// Copies of the whole object in its metadata are left out.
func (s Share) Cut(o client.Object) (client.Object, error) {
	part, err := s.cut(o)
	if err != nil {
		return nil, err
	}
	part.SetManagedFields(nil)
	if annotations := part.GetAnnotations(); annotations[corev1.LastAppliedConfigAnnotation] != "" {
		annotations = maps.Clone(annotations)
		delete(annotations, corev1.LastAppliedConfigAnnotation) // kubectl's copy of all endpoints
		part.SetAnnotations(annotations)
	}
	return part, nil
}

func endpoints() kinds.ID { return kinds.ID{Resource: "endpoints"} }

// serviceOf returns the Service that an object has the endpoints of; ok is false for one that has none.
func serviceOf(key wire.Key, o client.Object) (service wire.Key, ok bool) {
	service = wire.Key{Resource: "services", Namespace: key.Namespace, Name: key.Name}
	switch kinds.Of(key) {
	case endpoints():
		return service, true
	case kinds.Slices():
		service.Name = o.GetLabels()[discoveryv1.LabelServiceName]
		return service, service.Name != ""
	}
	return service, false
}

// CutAnswer cuts what the apiserver answered to a program at a node, also where the program's token has a right to all of it: the node has
// the token. What depends on internalTrafficPolicy is not cut, as that is for kube-proxies. Endpoints of an unknown Service are left out.
func (s *Shares) CutAnswer(node string, o *unstructured.Unstructured) (client.Object, error) {
	key := wire.Key{Resource: endpoints().Resource, Namespace: o.GetNamespace(), Name: o.GetName()}
	if o.GetKind() == "EndpointSlice" {
		key.Group, key.Resource = kinds.Slices().Group, kinds.Slices().Resource
	}
	share, err := s.of(node, key, o, false)
	if errors.Is(err, ErrNoService) {
		share, err = NoEndpoints(), nil
	}
	if err != nil || share.Whole() {
		return o, err
	}
	return share.Cut(o)
}

// Of returns a node's share of an object.
func (s *Shares) Of(node string, key wire.Key, o client.Object) (Share, error) {
	return s.of(node, key, o, true)
}

// of implements Of. local is false where a Service with the policy Local is not cut.
func (s *Shares) of(node string, key wire.Key, o client.Object, local bool) (Share, error) {
	revision := s.revision.Load() // before all that it counts
	of, ok := serviceOf(key, o)
	if !ok {
		return Share{}, nil
	}
	o, err := typedSlice(o)
	if err != nil {
		return Share{}, err
	}
	policy, err := s.policyOf(of)
	switch {
	case errors.Is(err, objectcache.ErrNotFound) && !hasEndpoint(o, func(string) bool { return true }):
		return Share{}, nil
	case errors.Is(err, objectcache.ErrNotFound), errors.Is(err, objectcache.ErrKindNotSynced):
		return Share{}, ErrNoService
	case err != nil:
		return Share{}, err
	}
	switch policy {
	case Group:
		group, known := s.groupOf(node)
		if !known {
			return Share{}, ErrGroupUnknown
		}
		return cutBy(fmt.Sprintf("%d group %s", revision, group), func(of string) bool {
			g, known := s.groupOf(of)
			return of != "" && known && g == group
		}), nil
	case Zone:
		if zone := s.zoneOf(node); zone != "" {
			return cutBy(fmt.Sprintf("%d zone %s", revision, zone), func(of string) bool { return s.zoneOf(of) == zone }), nil
		}
		return ownShare(node, o), nil
	case Node:
		return ownShare(node, o), nil
	case Local:
		if local {
			return localShare(node, o), nil
		}
	case Cluster:
	}
	return Share{}, nil
}

func cutBy(class string, keep func(node string) bool) Share {
	return Share{class, func(o client.Object) (client.Object, error) {
		o, err := typedSlice(o)
		if err != nil {
			return nil, err
		}
		return cut(o, keep)
	}}
}

// NoEndpoints is the share without endpoints.
func NoEndpoints() Share { return cutBy("none", func(string) bool { return false }) }

// ownShare is the share of a node that is given its own endpoints. Nodes without one have the same share.
func ownShare(node string, o client.Object) Share {
	keep := func(of string) bool { return of == node }
	if !hasEndpoint(o, keep) {
		return NoEndpoints()
	}
	return cutBy("node "+node, keep)
}

func localShare(node string, o client.Object) Share {
	slice, ok := o.(*discoveryv1.EndpointSlice)
	if !ok {
		return Share{} // Endpoints: no kube-proxy reads them
	}
	// A record of DNS has the name of such an endpoint.
	for i := range slice.Endpoints {
		if slice.Endpoints[i].Hostname != nil {
			return Share{}
		}
	}
	share, hasOwn := cutLocal(slice, node)
	class := "remote"
	if hasOwn {
		class = "local " + node
	}
	return Share{class, func(client.Object) (client.Object, error) { return share, nil }}
}

func (s *Shares) policyOf(service wire.Key) (Policy, error) {
	o, err := s.objects.Get(service)
	if err != nil {
		return Node, err
	}
	svc, ok := o.(*corev1.Service)
	if !ok {
		return Node, fmt.Errorf("service is a %T", o)
	}
	policy, _ := PolicyOf(svc) // reported at the Service's event
	return policy, nil
}

func (s *Shares) groupOf(node string) (group string, known bool) {
	if s.groups == nil {
		return "", true
	}
	return s.groups.GroupOf(node)
}

// zoneOf returns the zone of a node, "" for none.
func (s *Shares) zoneOf(node string) string {
	o, err := s.objects.Get(wire.Key{Resource: "nodes", Name: node})
	if err != nil {
		return ""
	}
	return o.GetLabels()[corev1.LabelTopologyZone]
}
