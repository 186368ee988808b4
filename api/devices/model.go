package devices

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// DeviceModel is what devices of one model have in common. A gateway receives the models of its devices.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=devicemodels,singular=devicemodel
// +kubebuilder:storageversion
// +kubebuilder:printcolumn:name=Protocol,type=string,JSONPath=`.spec.protocol`
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
type DeviceModel struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec DeviceModelSpec `json:"spec,omitzero"`
}

// DeviceModelSpec describes the properties of a model.
//
// +kubebuilder:object:generate=true
type DeviceModelSpec struct {
	// Properties have unique names. The bound lets the apiserver bound the cost of the rules: 30,000 properties with a type and an access mode
	// have more than the 1.5 MB that etcd takes.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=30000
	Properties []ModelProperty `json:"properties,omitempty"`
	// Protocol is the protocolName of the devices.
	Protocol string `json:"protocol,omitempty"`
	// ProtocolConfigData are defaults for the configData of the devices' protocol, a JSON object of the mapper's own.
	//
	// +kubebuilder:pruning:PreserveUnknownFields
	ProtocolConfigData *runtime.RawExtension `json:"protocolConfigData,omitempty"`
}

// ModelProperty describes a property.
//
// +kubebuilder:object:generate=true
// +kubebuilder:validation:XValidation:rule="!has(self.minimum) || !has(self.maximum) || !has(self.type) || !(self.type in ['INT', 'FLOAT', 'DOUBLE']) || !self.minimum.matches('^-?[0-9]+([.][0-9]+)?$') || !self.maximum.matches('^-?[0-9]+([.][0-9]+)?$') || double(self.minimum) <= double(self.maximum)",message="minimum is greater than maximum: no value is allowed",fieldPath=".minimum"
type ModelProperty struct {
	// Name is unique in the model. The names saveFrame and saveVideo are for properties of type STREAM.
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	// +kubebuilder:validation:Enum=INT;FLOAT;DOUBLE;STRING;BOOLEAN;BYTES;STREAM
	Type string `json:"type,omitempty"`
	// +kubebuilder:validation:Enum=ReadWrite;ReadOnly
	AccessMode string `json:"accessMode,omitempty"`
	// Minimum and Maximum bound the value of a property whose type is a number.
	//
	// +kubebuilder:validation:MaxLength=64
	Minimum string `json:"minimum,omitempty"`
	// +kubebuilder:validation:MaxLength=64
	Maximum string `json:"maximum,omitempty"`
	Unit    string `json:"unit,omitempty"`
	// Visitors replace those of the device whole, but for keys of configData that the device has itself.
	Visitors *ProtocolConfig `json:"visitors,omitempty"`
}

// DeviceModelList is what a list of them is in the Kubernetes API.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
type DeviceModelList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DeviceModel `json:"items"`
}

// DeviceList is what a list of them is in the Kubernetes API.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
type DeviceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Device `json:"items"`
}
