package apps

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The names in the Kubernetes API.
const (
	Group              = "apps.kubeedge.io"
	Version            = "v1alpha1"
	NodeGroupKind      = "NodeGroup"
	NodeGroupsResource = "nodegroups"
)

// What the fields of NodeStatus say.
const (
	NodeReady    = "Ready"
	NodeNotReady = "NotReady"
	NodeUnknown  = "Unknown"

	SelectionSucceeded = "Succeeded"
	SelectionFailed    = "Failed"
)

// NodeGroup is a set of Nodes, of a site perhaps. It has no namespace. A Node is a member of one group at most, whatever labels it has
// itself. The annotation frond.io/autonomy of a group holds for all Nodes that it selects.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=ng
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.selected`,description="Nodes that the group asks for"
// +kubebuilder:printcolumn:name="Members",type=integer,JSONPath=`.status.members`,description="Nodes that are in the group"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.ready`,description="Members that are Ready"
// +kubebuilder:printcolumn:name="Zone",type=boolean,JSONPath=`.spec.topologyEnabled`,description="Whether the group is the zone of its members",priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeGroup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   NodeGroupSpec   `json:"spec"`
	Status NodeGroupStatus `json:"status,omitzero"`
}

// NodeGroupSpec says which Nodes the group asks for: those that are named and those that have the labels.
//
// +kubebuilder:object:generate=true
type NodeGroupSpec struct {
	// Nodes are names of Nodes.
	Nodes []string `json:"nodes,omitempty"`
	// MatchLabels select the Nodes that have all of these labels; none select none.
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
	// TopologyEnabled makes the group the zone of its members (topology.kubernetes.io/zone), unless they have another zone.
	TopologyEnabled bool `json:"topologyEnabled,omitempty"`
}

// NodeGroupStatus is written by cloudcore. NodeStatuses is KubeEdge's, the rest Frond's.
//
// +kubebuilder:object:generate=true
type NodeGroupStatus struct {
	// NodeStatuses has one entry for each Node that the group asks for, by name.
	NodeStatuses []NodeStatus `json:"nodeStatuses,omitempty"`
	// Selected is the number of Nodes that the group asks for; one that is named and does not exist counts.
	//
	// +optional
	Selected int32 `json:"selected"`
	// Members is the number of Nodes that are in the group.
	//
	// +optional
	Members int32 `json:"members"`
	// Ready is the number of members whose condition Ready is True.
	//
	// +optional
	Ready int32 `json:"ready"`
	// ObservedGeneration is the generation of the spec that the status is about.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions are the group's, each type once.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NodeStatus is how one Node of a group is.
//
// +kubebuilder:object:generate=true
type NodeStatus struct {
	// NodeName is the Node's.
	NodeName string `json:"nodeName"`
	// ReadyStatus is Ready, NotReady or Unknown.
	ReadyStatus string `json:"readyStatus"`
	// SelectionStatus is Succeeded, or Failed where the Node could not become a member.
	SelectionStatus string `json:"selectionStatus"`
	// SelectionStatusReason says why it failed, for people. Of a member it may say what was not done for it.
	SelectionStatusReason string `json:"selectionStatusReason,omitempty"`
}

// NodeGroupList is what a list of them is in the Kubernetes API.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
type NodeGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeGroup `json:"items"`
}
