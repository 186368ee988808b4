package devices

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The names in the Kubernetes API.
const (
	Group                  = "devices.kubeedge.io"
	Version                = "v1beta1"
	DeviceKind             = "Device"
	DevicesResource        = "devices"
	DeviceModelKind        = "DeviceModel"
	DeviceModelsResource   = "devicemodels"
	DeviceStatusKind       = "DeviceStatus"
	DeviceStatusesResource = "devicestatuses"
)

// Device is one device behind a gateway. The gateway is spec.nodeName; it receives the Device and its DeviceModel.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=devices,singular=device
// +kubebuilder:storageversion
// +kubebuilder:selectablefield:JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name=Model,type=string,JSONPath=`.spec.deviceModelRef.name`
// +kubebuilder:printcolumn:name=Node,type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
type Device struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec DeviceSpec `json:"spec,omitzero"`
	// Status says how the mapper reports the device's state where spec.stateReport is absent. It also keeps all that KubeEdge before 1.23 wrote
	// there: twins, state and lastOnlineTime.
	//
	// +kubebuilder:pruning:PreserveUnknownFields
	Status DeviceReportRule `json:"status,omitzero"`
}

// DeviceSpec says what the device is and where.
//
// +kubebuilder:object:generate=true
// +kubebuilder:validation:XValidation:rule="!has(self.nodeName) || self.nodeName == ” || !format.dns1123Subdomain().validate(self.nodeName).hasValue()",message="nodeName is not a name that a Node can have",fieldPath=".nodeName"
type DeviceSpec struct {
	// DeviceModelRef names the DeviceModel, in the Device's namespace. Without one no mapper can serve the device.
	DeviceModelRef *corev1.LocalObjectReference `json:"deviceModelRef,omitempty"`
	// NodeName is the Node that the device is connected to. A change moves the device.
	//
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`
	// Protocol is how the device is reached. Its protocolName selects the mapper.
	Protocol ProtocolConfig `json:"protocol,omitzero"`
	// Properties are what can be read of the device or written to it. Their names are unique.
	//
	// +listType=map
	// +listMapKey=name
	Properties []DeviceProperty `json:"properties,omitempty"`
	// Methods are named ways to write some of the properties.
	Methods []DeviceMethod `json:"methods,omitempty"`
	// StateReport says how the mapper reports the device's state. KubeEdge has it since 1.23.
	StateReport *DeviceReportRule `json:"stateReport,omitempty"`
}

// DeviceReportRule says whether and how often the mapper reports a device's state.
//
// +kubebuilder:object:generate=true
type DeviceReportRule struct {
	ReportToCloud bool `json:"reportToCloud,omitempty"`
	// ReportCycle has the unit of the mapper: nanoseconds until version 1.17 of KubeEdge's mapper framework, milliseconds since 1.18.
	//
	// +kubebuilder:validation:Minimum=0
	ReportCycle int64 `json:"reportCycle,omitempty"`
}

// ProtocolConfig is the configuration of a protocol.
//
// +kubebuilder:object:generate=true
type ProtocolConfig struct {
	ProtocolName string `json:"protocolName,omitempty"`
	// ConfigData is a JSON object of the mapper's own.
	//
	// +kubebuilder:pruning:PreserveUnknownFields
	ConfigData *runtime.RawExtension `json:"configData,omitempty"`
}

// DeviceProperty is one property of a device.
//
// +kubebuilder:object:generate=true
type DeviceProperty struct {
	// Name is the property's name in the DeviceModel. The names saveFrame and saveVideo are for properties of type STREAM.
	Name string `json:"name"`
	// Desired is the value that the device should have.
	Desired *TwinProperty `json:"desired,omitempty"`
	// Visitors say how the property is read and written.
	Visitors ProtocolConfig `json:"visitors,omitzero"`
	// ReportCycle is how often the property is pushed, in the unit of the mapper (see DeviceReportRule); 0: each second.
	//
	// +kubebuilder:validation:Minimum=0
	ReportCycle int64 `json:"reportCycle,omitempty"`
	// CollectCycle is how often the property is read, in the unit of the mapper (see DeviceReportRule); 0: each second.
	//
	// +kubebuilder:validation:Minimum=0
	CollectCycle int64 `json:"collectCycle,omitempty"`
	// ReportToCloud: the mapper reports the property.
	ReportToCloud bool `json:"reportToCloud,omitempty"`
	// PushMethod is where the mapper itself sends the property.
	PushMethod *PushMethod `json:"pushMethod,omitempty"`
}

// TwinProperty is a value of a property.
//
// +kubebuilder:object:generate=true
type TwinProperty struct {
	Value    string            `json:"value"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// DeviceMethod is a named way to write properties.
//
// +kubebuilder:object:generate=true
type DeviceMethod struct {
	Name          string   `json:"name,omitempty"`
	Description   string   `json:"description,omitempty"`
	PropertyNames []string `json:"propertyNames,omitempty"`
}
