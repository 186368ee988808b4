package apps

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The names in the Kubernetes API.
const (
	Group              = "apps.kubeedge.io"
	Version            = "v1alpha1"
	NodeGroupKind      = "NodeGroup"
	NodeGroupsResource = "nodegroups"
)

// NodeGroup is a set of Nodes, of a site perhaps. It has no namespace. What a group means to its Nodes is each controller's own:
// the annotation frond.io/autonomy of a group holds for all of them.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=ng
// +kubebuilder:subresource:status
type NodeGroup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   NodeGroupSpec   `json:"spec"`
	Status NodeGroupStatus `json:"status,omitzero"`
}

// NodeGroupSpec says which Nodes are in: those that are named and those that have the labels.
//
// +kubebuilder:object:generate=true
type NodeGroupSpec struct {
	// Nodes are names of Nodes.
	Nodes []string `json:"nodes,omitempty"`
	// MatchLabels select the Nodes that have all of these labels; none select none.
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
	// TopologyEnabled asks for the group as the zone of its Nodes.
	TopologyEnabled bool `json:"topologyEnabled,omitempty"`
}

// NodeGroupStatus is written by the controller of NodeGroups, which is not built yet; nothing here reads it.
//
// +kubebuilder:object:generate=true
type NodeGroupStatus struct {
	// NodeStatuses has one entry for each Node that the group asks for, by name.
	NodeStatuses []NodeStatus `json:"nodeStatuses,omitempty"`
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
	// SelectionStatusReason says why it failed, for people.
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
