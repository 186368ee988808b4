// Package topology decides which endpoints of a Service a node is given: its share of each EndpointSlice and of the v1 Endpoints.
//
// The Service decides by its annotations (package api/names, traffic.go), and by internalTrafficPolicy where nobody on the node can tell the
// difference. Groups are those of Config.Groups, never a Node's label. What is not known is not given: the share of a node whose group is not
// known is an error, an endpoint whose node's group is not known is in no group's share, and an annotation that is not understood leaves
// the endpoints on the node itself. Shares are objects also without endpoints, as the marker of a scope counts objects.
//
// Nodes with the same share have the same Share.Class, so that it is encoded once. Shares says which objects are to be compared again after
// a change; it publishes nothing.
package topology

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/frond-edge/frond/api/names"
)

// Policy says which endpoints of a Service a node is given.
type Policy int

// The policies.
const (
	// Cluster gives all endpoints.
	Cluster Policy = iota
	// Node gives those on the node itself.
	Node
	// Group gives those in the node's NodeGroup, or without a group those on nodes without one.
	Group
	// Zone gives those in the node's zone, or without a zone those on the node itself.
	Zone
	// Local gives what a kube-proxy uses of a Service with internalTrafficPolicy Local. It is for slices only.
	Local
)

// PolicyOf returns the policy of a Service. An annotation that is not understood is an error, with the narrowest policy.
func PolicyOf(s *corev1.Service) (Policy, error) {
	if value, ok := s.Annotations[names.AnnotationServiceTopology]; ok {
		switch value {
		case names.TopologyNode:
			return Node, nil
		case names.TopologyGroup:
			return Group, nil
		case names.TopologyZone:
			return Zone, nil
		case names.TopologyCluster:
			return Cluster, nil
		}
		return Node, fmt.Errorf("annotation %s is %q: set it to node, group, zone or cluster", names.AnnotationServiceTopology, value)
	}
	if value, ok := s.Annotations[names.AnnotationKubeEdgeTopology]; ok {
		if value == names.TopologyRangeNodeGroup {
			return Group, nil
		}
		return Node, fmt.Errorf("annotation %s is %q: set it to %s", names.AnnotationKubeEdgeTopology, value, names.TopologyRangeNodeGroup)
	}
	if onlyLocal(s) {
		return Local, nil
	}
	return Cluster, nil
}

// onlyLocal reports whether a kube-proxy sends all traffic to a Service from its node to endpoints there. Traffic to node ports, load
// balancers and external addresses follows externalTrafficPolicy, and from pods it goes to all endpoints whatever that is. The names of
// a headless Service are those of all endpoints.
func onlyLocal(s *corev1.Service) bool {
	return ptr.Deref(s.Spec.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster) == corev1.ServiceInternalTrafficPolicyLocal &&
		(s.Spec.Type == corev1.ServiceTypeClusterIP || s.Spec.Type == "") &&
		s.Spec.ClusterIP != corev1.ClusterIPNone && len(s.Spec.ExternalIPs) == 0
}
