// Package v1alpha1 is the version v1alpha1 of operations.kubeedge.io as far as the apiserver needs it. Its objects have the fields of v1alpha2 and are stored
// as such, without a conversion, as in KubeEdge.
//
// +groupName=operations.kubeedge.io
// +versionName=v1alpha1
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/operations"
)

// ImagePrePullJob pulls images on gateways before their pods need them. It has no namespace.
//
// +kubebuilder:resource:path=imageprepulljobs,singular=imageprepulljob,scope=Cluster
// +kubebuilder:subresource:status
// +kubebuilder:deprecatedversion
type ImagePrePullJob struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec operations.ImagePrePullJobSpec `json:"spec"`
	// +optional
	Status operations.ImagePrePullJobStatus `json:"status,omitzero"`
}
