package identity

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/frond-edge/frond/api/names"
)

// The kind's names in the Kubernetes API.
const (
	Group    = "identity.frond.io"
	Version  = "v1alpha1"
	Kind     = "NodeIdentity"
	Resource = "nodeidentities"
)

// WithGatewayLabels returns the labels with which a gateway's Node is created: those that it asks for, with the two of a gateway, and
// without the label of a NodeGroup, which a gateway does not give itself. The map given stays as it is.
func WithGatewayLabels(labels map[string]string) map[string]string {
	all := maps.Clone(labels)
	if all == nil {
		all = map[string]string{}
	}
	delete(all, names.LabelNodeGroup)
	all[names.LabelEdge], all[names.LabelAgent] = "", ""
	return all
}

// GroupVersionResource is where NodeIdentities are.
func GroupVersionResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: Group, Version: Version, Resource: Resource}
}

// NodeIdentity says which keys are a gateway. It has no namespace, and the name of the Node. cloudcore alone writes it, and
// `frond node revoke`.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=nid
// +kubebuilder:printcolumn:name="Key",type=string,JSONPath=`.spec.key`
// +kubebuilder:printcolumn:name="Expires",type=string,JSONPath=`.spec.expires`
// +kubebuilder:printcolumn:name="Revoked",type=string,JSONPath=`.spec.revokedAt`
type NodeIdentity struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NodeIdentitySpec `json:"spec"`
}

// NodeIdentitySpec is who may come in as the node.
//
// +kubebuilder:object:generate=true
type NodeIdentitySpec struct {
	// Key is the public nkey, "U…", that is the node now; "" is rejected.
	//
	// +kubebuilder:validation:Pattern=`^(U[A-Z2-7]{55})?$`
	Key string `json:"key,omitempty"`
	// Previous is the key that Key replaced: it is the node, too, until Key was seen on a link, so that a gateway whose answer was
	// lost is not locked out.
	//
	// +kubebuilder:validation:Pattern=`^(U[A-Z2-7]{55})?$`
	Previous string `json:"previous,omitempty"`
	// Issued is when Key was recorded.
	Issued metav1.Time `json:"issued,omitzero"`
	// Expires is when Key stops being enough for the link; within the policy's window after that it may still be renewed.
	Expires metav1.Time `json:"expires,omitzero"`
	// Revoked are keys that are rejected permanently, under any name. Keys of a node that was revoked are added here.
	//
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:Pattern=`^U[A-Z2-7]{55}$`
	// +listType=set
	Revoked []string `json:"revoked,omitempty"`
	// RevokedAt is when the node was revoked; it stays out until somebody gives out a token for its very name.
	RevokedAt *metav1.Time `json:"revokedAt,omitempty"`
}

// NodeIdentityList is what a list of them is in the Kubernetes API.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
type NodeIdentityList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeIdentity `json:"items"`
}
