package names

// The annotations of a Service that say on which nodes its endpoints are met. cloudcore cuts what it delivers to a gateway accordingly.
const (
	// AnnotationServiceTopology of a Service is TopologyNode, TopologyGroup, TopologyZone or TopologyCluster. It takes precedence over
	// AnnotationKubeEdgeTopology.
	AnnotationServiceTopology = "frond.io/service-topology"
	// AnnotationKubeEdgeTopology of a Service is TopologyRangeNodeGroup; KubeEdge's name.
	AnnotationKubeEdgeTopology = "apps.kubeedge.io/service-topology"

	// TopologyNode is for the endpoints on the client's own node.
	TopologyNode = "node"
	// TopologyGroup is for those in the NodeGroup of the client's node. Nodes without a group meet those without a group.
	TopologyGroup = "group"
	// TopologyZone is for those in the zone of the client's node (topology.kubernetes.io/zone).
	TopologyZone = "zone"
	// TopologyCluster is for all, whatever the Service's internalTrafficPolicy is.
	TopologyCluster = "cluster"
	// TopologyRangeNodeGroup is KubeEdge's name of TopologyGroup.
	TopologyRangeNodeGroup = "range-nodegroup"
)
