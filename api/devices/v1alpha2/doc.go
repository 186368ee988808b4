// Package v1alpha2 is the version v1alpha2 of devices.kubeedge.io as far as the apiserver needs it: it takes such manifests, and warns. KubeEdge
// serves this version since 1.15 without converting or reading it, and so does Frond.
//
// An object is stored as v1beta1: fields that v1beta1 does not have are gone when the object is read again.
//
// +groupName=devices.kubeedge.io
// +versionName=v1alpha2
package v1alpha2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Device has any fields.
//
// +kubebuilder:resource:path=devices,singular=device
// +kubebuilder:deprecatedversion:warning="devices.kubeedge.io/v1alpha2 Device: Frond does not understand this version: write devices.kubeedge.io/v1beta1"
// +kubebuilder:pruning:PreserveUnknownFields
type Device struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
}

// DeviceModel has any fields.
//
// +kubebuilder:resource:path=devicemodels,singular=devicemodel
// +kubebuilder:deprecatedversion:warning="devices.kubeedge.io/v1alpha2 DeviceModel: Frond does not understand this version: write devices.kubeedge.io/v1beta1"
// +kubebuilder:pruning:PreserveUnknownFields
type DeviceModel struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
}

// DeviceStatus has any fields.
//
// +kubebuilder:resource:path=devicestatuses,singular=devicestatus
// +kubebuilder:deprecatedversion:warning="devices.kubeedge.io/v1alpha2 DeviceStatus: Frond does not understand this version: write devices.kubeedge.io/v1beta1"
// +kubebuilder:pruning:PreserveUnknownFields
type DeviceStatus struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
}
